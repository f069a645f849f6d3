// perseus_core._engine: perseus.h for Python, and nothing more. perseus_core/_engine.pyi describes
// it. Calls that may block release the GIL; the others take about a microsecond and keep it.

#include <pybind11/pybind11.h>

#include "python/arrays.h"
#include "python/callbacks.h"
#include "python/handles.h"
#include "python/messages.h"
#include "python/observe.h"
#include "python/operations.h"
#include "python/process.h"
#include "python/proofs.h"
#include "python/submit.h"

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The engine of Perseus, through its C interface.";
  perseus::python::bind_process(module);
  perseus::python::bind_operations(module);
  perseus::python::bind_submit(module);
  perseus::python::bind_messages(module);
  perseus::python::bind_handles(module);
  perseus::python::bind_arrays(module);
  perseus::python::bind_callbacks(module);
  perseus::python::bind_observe(module);
  perseus::python::bind_proofs(module);
}
