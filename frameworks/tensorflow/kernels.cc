#include "kernels.h"

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attributes.h"
#include "op_run.h"

namespace perseus::tensorflow {
namespace {

template <typename Kernel>
void destroy(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

// ---- Collective ops.

bool is_reduction(perseus_operation_t operation) {
  return operation == PERSEUS_ALLREDUCE || operation == PERSEUS_REDUCESCATTER;
}

bool is_count(const std::string& component) {
  return component.size() > 1 && component.front() == '_' &&
         component.find_first_not_of("0123456789", 1) == std::string::npos;
}

// TensorFlow inlines the branches of a condition and the body of a loop, and calls their nodes
// cond/then/_17/NODE, where 17 says how many names it has made for the graph before. That may
// differ between ranks, for instance with their numbers of variables. Returns cond/then/NODE.
std::string node_of(Attributes& attributes) {
  std::istringstream components(attributes.node());
  std::string node;
  for (std::string component; std::getline(components, component, '/');) {
    if (!is_count(component)) node += (node.empty() ? "" : "/") + component;
  }
  return node;
}

std::string name_of(Attributes& attributes) {
  const std::string given = attributes.text("tensor_name");
  if (!given.empty()) return given;
  const std::string node = node_of(attributes);
  return attributes.flag("ignore_name_scope") ? node.substr(node.rfind('/') + 1) : node;
}

void read_reduction(Attributes& attributes, Collective& collective) {
  collective.reduce_op = attributes.number("reduce_op");
  collective.prescale = attributes.real("prescale_factor", "prescale_rest");
  collective.postscale = attributes.real("postscale_factor", "postscale_rest");
}

void fail(TF_OpKernelConstruction* construction, int code, const char* message) {
  const StatusHolder status = new_status();
  api().TF_SetStatus(status.get(), code, message);
  api().TF_OpKernelConstruction_Failure(construction, status.get());
}

// Returns false if that fails; the construction has then failed.
bool add_member(TF_OpKernelConstruction* construction, Collective& collective, int32_t process_set,
                const std::string& name, int32_t priority) {
  Member member{.priority = priority};
  const perseus_status_t status =
      perseus_register(process_set, collective.operation, name.c_str(), &member.id);
  if (status != PERSEUS_OK) {
    fail(construction, code_of(status), perseus_last_error());
    return false;
  }
  collective.members.push_back(member);
  return true;
}

template <perseus_operation_t kOperation>
void* create_collective(TF_OpKernelConstruction* construction) {
  auto collective = std::make_unique<Collective>(Collective{.operation = kOperation});
  Attributes attributes(construction);
  if (is_reduction(kOperation)) read_reduction(attributes, *collective);
  if (kOperation == PERSEUS_BROADCAST) collective->root = attributes.number("root_rank");
  // All ranks take part in a join, and they match it without a name.
  const bool is_named = kOperation != PERSEUS_JOIN;
  const int32_t process_set = is_named ? attributes.number("process_set_id") : PERSEUS_WORLD;
  const std::string name = is_named ? name_of(attributes) : "join";
  const int32_t priority = is_named ? attributes.number("priority") : 0;
  if (attributes.fail_if_missing() ||
      !add_member(construction, *collective, process_set, name, priority)) {
    return nullptr;
  }
  return collective.release();
}

// Several allreduces in one node, each with one tensor, a priority, and a name in the node's scope.
// TensorFlow takes as long to run a node as Perseus to reduce a small tensor.
void* create_each(TF_OpKernelConstruction* construction) {
  auto collective = std::make_unique<Collective>(Collective{.operation = PERSEUS_ALLREDUCE});
  Attributes attributes(construction);
  read_reduction(attributes, *collective);
  const int32_t process_set = attributes.number("process_set_id");
  const std::vector<std::string> names = attributes.texts("names");
  const std::vector<int32_t> priorities = attributes.numbers("priorities");
  const auto count = static_cast<size_t>(attributes.number("num_tensors"));
  if (attributes.fail_if_missing()) return nullptr;
  if (names.size() != count || priorities.size() != count) {
    fail(construction, kInvalidArgument, "each tensor takes a name and a priority");
    return nullptr;
  }
  const std::string node = node_of(attributes);
  const std::string scope = node.substr(0, node.rfind('/') + 1);
  for (size_t i = 0; i < count; ++i) {
    if (!add_member(construction, *collective, process_set, scope + names[i], priorities[i])) {
      return nullptr;
    }
  }
  return collective.release();
}

void run_collective(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  // `done` points at a std::function that lives only until this returns, so it is copied.
  OpRun::start(*static_cast<Collective*>(kernel), context,
               [copy = *reinterpret_cast<std::function<void()>*>(done)]() mutable {
                 api().TF_RunAsyncOpKernelDoneCallback(
                     reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy));
               });
}

struct CollectiveOp {
  const char* name;
  void* (*create)(TF_OpKernelConstruction*);
  std::vector<const char*> arguments;
};

const std::vector<CollectiveOp>& collective_ops() {
  static const auto& ops = *new std::vector<CollectiveOp>{
      {"HorovodAllreduce", create_collective<PERSEUS_ALLREDUCE>, {"tensor", "sum"}},
      {"HorovodGroupedAllreduce", create_collective<PERSEUS_ALLREDUCE>, {"tensors", "sum"}},
      {"PerseusAllreduceEach", create_each, {"tensors", "sums"}},
      {"HorovodReducescatter", create_collective<PERSEUS_REDUCESCATTER>, {"tensor", "output"}},
      {"HorovodGroupedReducescatter",
       create_collective<PERSEUS_REDUCESCATTER>,
       {"tensors", "output"}},
      {"HorovodAllgather", create_collective<PERSEUS_ALLGATHER>, {"tensor", "output"}},
      {"HorovodGroupedAllgather", create_collective<PERSEUS_ALLGATHER>, {"tensors", "output"}},
      {"HorovodBroadcast", create_collective<PERSEUS_BROADCAST>, {"tensor", "output"}},
      {"HorovodAlltoall",
       create_collective<PERSEUS_ALLTOALL>,
       {"tensor", "splits", "output", "received_splits"}},
      {"HorovodJoin", create_collective<PERSEUS_JOIN>, {"last_rank"}},
  };
  return ops;
}

// ---- Ops that a rank answers by itself.

struct Query {
  int32_t process_set = PERSEUS_WORLD;
};

void* create_query(TF_OpKernelConstruction*) { return new Query; }

void* create_query_of_set(TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  const int32_t process_set = attributes.number("process_set_id");
  if (attributes.fail_if_missing()) return nullptr;
  return new Query{process_set};
}

using Answer = int32_t (*)(int32_t process_set);

template <Answer kAnswer>
void run_query(void* kernel, TF_OpKernelContext* context) {
  const StatusHolder status = new_status();
  if (perseus_is_initialized() == 0) {
    api().TF_SetStatus(status.get(), kFailedPrecondition,
                       "Perseus has not been initialized; use hvd.init()");
    return api().TF_OpKernelContext_Failure(context, status.get());
  }
  const Tensor tensor(
      api().TF_AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof(int32_t), status.get()));
  if (!is_ok(status)) return api().TF_OpKernelContext_Failure(context, status.get());
  *static_cast<int32_t*>(api().TF_TensorData(tensor.get())) =
      kAnswer(static_cast<Query*>(kernel)->process_set);
}

// Horovod's code for a process set that does not exist.
constexpr int32_t kUnknownSet = -2;

int32_t set_size(int32_t set) {
  const int32_t size = perseus_process_set_size(set);
  return size < 0 ? kUnknownSet : size;
}

int32_t is_in_set(int32_t set) {
  if (perseus_process_set_size(set) < 0) return kUnknownSet;
  return perseus_process_set_rank(set) >= 0 ? 1 : 0;
}

struct QueryOp {
  const char* name;
  void* (*create)(TF_OpKernelConstruction*);
  void (*run)(void*, TF_OpKernelContext*);
  const char* output;
};

constexpr QueryOp kQueryOps[] = {
    {"HorovodSize", create_query_of_set, run_query<set_size>, "size"},
    {"HorovodProcessSetIncluded", create_query_of_set, run_query<is_in_set>, "included"},
    {"HorovodLocalSize", create_query, run_query<[](int32_t) { return perseus_local_size(); }>,
     "local_size"},
    {"HorovodRank", create_query, run_query<[](int32_t) { return perseus_rank(); }>, "rank"},
    {"HorovodLocalRank", create_query, run_query<[](int32_t) { return perseus_local_rank(); }>,
     "local_rank"},
};

// TensorFlow copies tensors from and to its GPUs, since its C API does not give out their streams.
constexpr const char* kDevices[] = {"CPU", "GPU"};

std::string register_kernel(TF_KernelBuilder* builder, const char* op, const char* device,
                            const std::vector<const char*>& arguments) {
  // All memory of the CPU is the host's. Marking it so would keep TensorFlow from forwarding
  // inputs.
  if (std::string_view(device) == "GPU") {
    for (const char* argument : arguments) api().TF_KernelBuilder_HostMemory(builder, argument);
  }
  const StatusHolder status = new_status();
  const std::string name = std::string(op) + device;
  api().TF_RegisterKernelBuilder(name.c_str(), builder, status.get());
  return is_ok(status) ? "" : name + ": " + api().TF_Message(status.get());
}

}  // namespace

std::string register_kernels() {
  for (const char* device : kDevices) {
    for (const CollectiveOp& op : collective_ops()) {
      TF_KernelBuilder* const builder = api().TF_NewAsyncKernelBuilder(
          op.name, device, op.create, run_collective, destroy<Collective>);
      std::string wrong = register_kernel(builder, op.name, device, op.arguments);
      if (!wrong.empty()) return wrong;
    }
    for (const QueryOp& op : kQueryOps) {
      TF_KernelBuilder* const builder =
          api().TF_NewKernelBuilder(op.name, device, op.create, op.run, destroy<Query>);
      std::string wrong = register_kernel(builder, op.name, device, {op.output});
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace perseus::tensorflow
