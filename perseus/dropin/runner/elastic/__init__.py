"""What Horovod's elastic launcher offers to programs, over that of perseus.elastic."""
