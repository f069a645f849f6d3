"""The contenders: each is a module with a class Contender, or a C program with serve.h.

    rank, size
    tensor(elements)          float32, one-dimensional, memory already touched
    fill(tensor, value)
    allreduce(tensor)         in place, a sum; these return the result once it is available
    allreduce_copy(tensor)    as called by a script that keeps its input
    broadcast(tensor)         in place, from rank 0
    allgather(tensor)
    alltoall(tensor)          equal parts
    reducescatter(tensor)     a sum; this rank's part
    allreduce_async(tensor, name, priority) -> handle      in place, a sum; the name is the tensor's
    wait(handle)
    distribute(model, optimizer, prefix) -> (model, optimizer)   of PyTorch, to train together;
                              the prefix tells models apart
    function, scope, summed, train      in TensorFlow's graphs: see tensorflow_graph.py
    barrier()
    close()

An operation that an interface lacks raises NotImplementedError.
"""
