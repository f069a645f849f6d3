// The sockets that a launcher hands down to a rank by a number in its environment: the one for news
// of other ranks (perseus/run/news_socket.py), and the one to MPICH's or Slurm's launcher (PMI),
// which ends the job if it is told to. Everything that the rank's command starts inherits them.
// From the moment at which a process is the rank, what it starts does not, neither by a fork nor by
// exec.
#pragma once

namespace perseus {

// This process has become the rank. One thread at a time, as the next.
void hold_launcher_sockets();
// This process has left the job, so that one that it starts may become the rank, and be heard. A
// program that has begun to talk to MPI's launcher keeps that socket.
void hand_on_launcher_sockets();

// The socket for news of other ranks; -1 if there is none, or this process is not the rank. Any
// thread.
int news_socket();

}  // namespace perseus
