// More ports for a rendezvous that rank 0 serves to other hosts, in case another user listens at
// all those that everybody can know.
#pragma once

#include "bootstrap/environment.h"

namespace perseus {

// Adds ports that follow from the job's secret to the places where the ranks look for each other.
// So the ranks agree on them, and nobody else can tell them before rank 0 listens there, unless the
// secret can be guessed. Does nothing if the user has named a port, or the ranks of one host tell
// each other.
void add_spare_ports(LaunchEnvironment& launch);

}  // namespace perseus
