"""Perseus: the communication layer under data-parallel training."""
