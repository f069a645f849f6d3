/* SPDX-License-Identifier: Apache-2.0 */
/* perseus.h: the C interface of Perseus, the communication layer under data-parallel training.
 *
 * C99. Any thread may make any call, except where a comment below says otherwise. A call that can
 * fail returns a perseus_status_t; perseus_last_error() then gives the message of the calling
 * thread's last failure. If a structure that the caller provides begins with struct_size, the
 * caller sets that to sizeof, even where the library fills in the rest. New fields are only ever
 * added at the end. A buffer passed to perseus_submit belongs to the library from then until the
 * operation is complete.
 *
 * Callbacks run on a thread of the library or, if the caller allows it, on a thread that is in one
 * of the waiting calls. They must be short, must not block, and must not throw. A call that would
 * make a callback wait for itself returns PERSEUS_INVALID_ARGUMENT. A child process that is forked
 * in a callback may only exec or _exit. */
#ifndef PERSEUS_PERSEUS_H_
#define PERSEUS_PERSEUS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PERSEUS_VERSION_MAJOR 0
#define PERSEUS_VERSION_MINOR 1
#define PERSEUS_VERSION_PATCH 0

#if defined(__GNUC__)
#define PERSEUS_API __attribute__((visibility("default")))
#else
#define PERSEUS_API
#endif

/** @defgroup types Numbers and types
 * @{ */

/** What a call returns: one of the numbers that follow. */
typedef int32_t perseus_status_t;
enum perseus_status {
  PERSEUS_OK = 0,
  PERSEUS_INVALID_ARGUMENT = 1, /**< a mistake of the caller on this rank */
  PERSEUS_NOT_INITIALIZED = 2,  /**< before init, or after shutdown */
  PERSEUS_ABORTED = 3,          /**< a peer died or left, or this process shut down */
  PERSEUS_MISMATCH = 4,       /**< ranks described a name differently, or one's call was refused */
  PERSEUS_DUPLICATE_NAME = 5, /**< the name is already in flight here */
  PERSEUS_TIMED_OUT = 6,
  PERSEUS_UNREACHABLE = 7, /**< a host or port could not be reached */
  PERSEUS_UNSUPPORTED = 8,
  PERSEUS_OUT_OF_MEMORY = 9,
  PERSEUS_INTERNAL = 10,    /**< a fault of Perseus itself */
  PERSEUS_IN_PROGRESS = 11, /**< a wait's time-out ended before the operation */
  PERSEUS_NON_FINITE = 12   /**< a NaN or infinity, with PERSEUS_ALLREDUCE_NANCHECK=raise */
};

/** The type of a tensor's elements. */
typedef int32_t perseus_dtype_t;
enum perseus_dtype {
  PERSEUS_UINT8 = 0,
  PERSEUS_INT8 = 1,
  PERSEUS_UINT16 = 2,
  PERSEUS_INT16 = 3,
  PERSEUS_INT32 = 4,
  PERSEUS_INT64 = 5,
  PERSEUS_FLOAT16 = 6,
  PERSEUS_FLOAT32 = 7,
  PERSEUS_FLOAT64 = 8,
  PERSEUS_BOOL = 9,
  PERSEUS_BFLOAT16 = 10
};

/** How tensors are reduced. The numbers are Horovod's. */
typedef int32_t perseus_reduce_op_t;
enum perseus_reduce_op {
  PERSEUS_AVERAGE = 0,
  PERSEUS_SUM = 1,
  PERSEUS_ADASUM = 2,
  PERSEUS_MIN = 3,
  PERSEUS_MAX = 4,
  PERSEUS_PRODUCT = 5,
  PERSEUS_BITWISE_AND = 6, /**< this and the next: of integers and bool */
  PERSEUS_BITWISE_OR = 7,
  PERSEUS_BITWISE_XOR = 8
};

/** The kind of an operation. */
typedef int32_t perseus_operation_t;
enum perseus_operation {
  PERSEUS_ALLREDUCE = 0,
  PERSEUS_BROADCAST = 1,
  PERSEUS_ALLGATHER = 2,
  PERSEUS_ALLTOALL = 3,
  PERSEUS_REDUCESCATTER = 4,
  PERSEUS_BARRIER = 5,
  PERSEUS_JOIN = 6
};

/** Where tensors live. */
typedef int32_t perseus_device_t;
enum perseus_device {
  PERSEUS_CPU = 0,
  PERSEUS_CUDA = 1 /**< a GPU, through CUDA */
};

/** A process set; 0 is the set of all ranks. */
typedef int32_t perseus_process_set_t;
/** The process set of all ranks. */
#define PERSEUS_WORLD 0

/** A submitted operation. Never 0. */
typedef int64_t perseus_handle_t;

/** The version as one number: major * 10000 + minor * 100 + patch. */
PERSEUS_API int32_t perseus_version(void);
/** Message of this thread's last failed call; "" if none has failed. Valid until this thread's next
 * failed call. */
PERSEUS_API const char* perseus_last_error(void);
/** Short name of a status code, such as "invalid argument". */
PERSEUS_API const char* perseus_status_name(perseus_status_t status);

/** @} */

/** @defgroup process Process
 * @{ */

/** Options of perseus_init. */
typedef struct {
  size_t struct_size;
  /** The launched ranks that form the world; NULL and 0 for all. A rank that is left out gets a
   * world of its own. */
  const int32_t* ranks;
  int32_t rank_count;
  int32_t rank; /**< this process's rank, if `size` is not 0 */
  /** The number of ranks, if the program knows it and not a launcher. Launchers' variables are then
   * not looked at, and the ranks meet at `rendezvous`. 0: the environment tells. */
  int32_t size;
  int32_t secret_is_known; /**< 1 if others may have come to know `secret` */
  /** "host:port" where perseus_rendezvous_start serves; several of them, separated by commas, are
   * tried one after the other. NULL if `size` is 1 or `ranks` leaves this rank out. */
  const char* rendezvous;
  const char* secret; /**< the one that the rendezvous was started with */
  /** Counts the meetings at a `rendezvous` that a launcher serves, from 1; it is the same on all
   * ranks of `ranks`. 0: rank 0 serves the rendezvous, for one meeting. */
  int32_t meeting;
} perseus_init_options_t;

/** From now on, perseus_init and the calls that add, remove, open or close process sets, when made
 * on this thread, call `check` about 20 times a second. They return PERSEUS_ABORTED once it returns
 * anything but 0. Waits for operations do not call it. A NULL `check` turns this off. */
PERSEUS_API void perseus_set_interruption_check(int (*check)(void* user), void* user);

/** From now on, perseus_init on this thread calls `board` where ranks on several hosts meet at
 * rank 0, as under torchrun, to find it at a port that nobody can have taken before. On rank 0,
 * `port` is where it listens, for `board` to leave word of. On the others it is 0, and `board`
 * returns the port that rank 0 has left, or 0 as long as there is none; it must not wait.
 * `generation` counts the calls of perseus_init of each process, from 0. What it returns need not
 * be true: a rank calls there first, and a port that is wrong costs some seconds. A NULL `board`
 * turns this off. */
PERSEUS_API void perseus_set_meeting_board(int32_t (*board)(void* user, int32_t generation,
                                                            int32_t port),
                                           void* user);

/** Tells the kernel that this memory, such as a new output, is about to be written as a whole. If
 * it is large, the kernel is asked for huge pages; without them it takes longer to get the memory
 * than to fill it. The library does this itself for the results that it allocates. */
PERSEUS_API void perseus_prefer_huge_pages(void* memory, size_t bytes);

/** Joins the other ranks. Reads the settings from the environment. Blocks until all ranks have
 * joined or the start time-out ends. A second call without a shutdown in between does nothing.
 * Returns PERSEUS_INVALID_ARGUMENT in a process that a rank has started, forked or by exec, between
 * its own perseus_init and shutdown: that process would take the rank's place. Says so in the
 * environment, as PERSEUS_RANK_HELD_BY. options may be NULL. */
PERSEUS_API perseus_status_t perseus_init(const perseus_init_options_t* options);
/** Tells as which rank of how many this process was launched, as perseus_init would find in the
 * environment: rank 0 of 1 without a launcher. *size is 0 if only MPI itself knows it. *variable is
 * the name of the variable that tells the rank: "LOCAL_RANK" if the rank follows from that and
 * others, and "" without a launcher. It is valid until this thread's next call. Returns
 * PERSEUS_INVALID_ARGUMENT if variables are malformed or missing, or launchers contradict each
 * other. */
PERSEUS_API perseus_status_t perseus_launched_as(int32_t* rank, int32_t* size,
                                                 const char** variable);
/** Leaves the job. Operations that all ranks have agreed on may still complete, for up to 2 s;
 * other operations under way, here and on the other ranks, end with PERSEUS_ABORTED. perseus_init
 * may be called again afterwards. Does nothing when not initialised. */
PERSEUS_API perseus_status_t perseus_shutdown(void);
/** Like perseus_shutdown, for a program that has failed: the other ranks' errors quote `why`, a few
 * words. */
PERSEUS_API perseus_status_t perseus_shutdown_because(const char* why);
/** Returns 1 between a successful perseus_init and shutdown, else 0. A forked child starts with
 * 0. */
PERSEUS_API int32_t perseus_is_initialized(void);

/** Returns this process's rank in the world; -1 when not initialised. */
PERSEUS_API int32_t perseus_rank(void);
/** Returns the number of ranks in the world; -1 when not initialised. */
PERSEUS_API int32_t perseus_size(void);
/** Returns the rank among the ranks of this host, in the order of their ranks, or of their slots in
 *  an elastic job; -1 when not initialised. */
PERSEUS_API int32_t perseus_local_rank(void);
/** Returns the number of ranks on this host; -1 when not initialised. */
PERSEUS_API int32_t perseus_local_size(void);
/** Returns the rank among the ranks with the same local rank, one on each host; -1 when not
 * initialised. */
PERSEUS_API int32_t perseus_cross_rank(void);
/** Returns the number of ranks with the same local rank; -1 when not initialised. */
PERSEUS_API int32_t perseus_cross_size(void);
/** Returns 1 if every host has the same number of ranks, 0 if not, and -1 when not initialised. */
PERSEUS_API int32_t perseus_is_homogeneous(void);
/** Returns how many processors this rank has if the ranks of its machine share evenly those that
 * each of them may run on: at least 1, and -1 when not initialised. */
PERSEUS_API int32_t perseus_processor_share(void);
/** Returns the thread support that MPI was initialised with, if the ranks met through MPI: 0
 * single, 1 funneled, 2 serialized, 3 multiple. Returns -1 if they met without MPI, or when not
 * initialised. */
PERSEUS_API int32_t perseus_mpi_thread_level(void);

/** @} */

/** @defgroup announcements Announcements
 * @{ */

/** Announces a number to all ranks of the world, such as that of a change to the job. They learn of
 * it with the operations that they do anyway, all at the same one: each operation of PERSEUS_WORLD
 * carries the highest number that a rank had announced when the ranks agreed on that operation. An
 * operation that this rank submits after this call carries this number, or a higher one. Any rank
 * may call this at any time. It does not block, sends nothing by itself and wakes nobody. A number
 * that is not above all that this rank has announced since init has no effect. Returns
 * PERSEUS_NOT_INITIALIZED before init and after shutdown. */
PERSEUS_API perseus_status_t perseus_announce(uint64_t number);
/** Returns the highest number that the operations of PERSEUS_WORLD have carried which have
 * succeeded on this rank since init, or whose results perseus_wait_on_stream has put in the order
 * of a stream. Returns 0 if they carried none, or when not initialised. All ranks read the same
 * number at the same point of their programs, provided that no operation is outstanding there. An
 * operation's number counts before its callback is called and before a wait for it returns. */
PERSEUS_API uint64_t perseus_announced(void);

/** @} */

/** @defgroup process_sets Process sets
 * @{ */

/** Makes a process set of these ranks. Every rank of the world, member or not, must call this with
 * the same ranks; the call blocks until all have. The id is the same on all ranks. Returns
 * PERSEUS_INVALID_ARGUMENT if a set of the same ranks exists already. */
PERSEUS_API perseus_status_t perseus_add_process_set(const int32_t* ranks, int32_t rank_count,
                                                     perseus_process_set_t* set);
/** Removes a set. Every rank of the world must call this; the call blocks until all have. */
PERSEUS_API perseus_status_t perseus_remove_process_set(perseus_process_set_t set);
/** The lowest id that perseus_open_process_set takes. */
#define PERSEUS_FIRST_OPENED_SET (1 << 20)
/** The highest id that perseus_open_process_set takes. */
#define PERSEUS_LAST_OPENED_SET ((1 << 23) - 1)
/** Opens a set that only its members open and close, after they have agreed on it by other means.
 * Every member passes the same ranks and the same id, from PERSEUS_FIRST_OPENED_SET to
 * PERSEUS_LAST_OPENED_SET. Until the next init, no member may use the id for another set. Returns
 * PERSEUS_INVALID_ARGUMENT if this rank is not a member, or has used the id before. */
PERSEUS_API perseus_status_t perseus_open_process_set(perseus_process_set_t set,
                                                      const int32_t* ranks, int32_t rank_count);
/** Closes the set on this rank, and ends it on the other members, which must close it, too.
 * Operations that the members have agreed on still complete on all of them. All other operations of
 * the set fail: on this rank with PERSEUS_INVALID_ARGUMENT, on the others with PERSEUS_ABORTED. If
 * this rank is in a round of agreement, the call blocks until that round has ended, but for at most
 * 1 s. It does not matter whether other members have closed the set, have left or are lost. */
PERSEUS_API perseus_status_t perseus_close_process_set(perseus_process_set_t set);
/** Returns this process's rank in the set; -1 if it is not a member or there is no such set. */
PERSEUS_API int32_t perseus_process_set_rank(perseus_process_set_t set);
/** Returns the number of ranks in the set; -1 if there is no such set. */
PERSEUS_API int32_t perseus_process_set_size(perseus_process_set_t set);
/** Writes the set's ranks, ascending; ranks must hold perseus_process_set_size(set). */
PERSEUS_API perseus_status_t perseus_process_set_ranks(perseus_process_set_t set, int32_t* ranks);
/** Writes up to `capacity` ids, ascending, and returns how many sets there are. */
PERSEUS_API int32_t perseus_process_sets(perseus_process_set_t* ids, int32_t capacity);

/** @} */

/** @defgroup operations Operations
 * @{ */

/** Sets *id to a small number that stands for the operation with this set, kind and name. The same
 * arguments always give the same id. Ranks match operations by set, kind and name, so one name may
 * be used for different kinds. A name is 1 to 4096 bytes long. This does not communicate, and may
 * be called before init. Ids are valid until the process ends. */
PERSEUS_API perseus_status_t perseus_register(perseus_process_set_t set,
                                              perseus_operation_t operation, const char* name,
                                              int32_t* id);

/** A tensor of a submission, row-major and contiguous. */
typedef struct {
  const void* input;
  /** Where the result goes; may equal input. NULL: the library allocates it (see perseus_result).
   * Must be NULL for ALLGATHER and ALLTOALL, whose result's size is not known in advance; see
   * perseus_submission_t.offered. */
  void* output;
  const int64_t* shape;
  int32_t rank; /**< number of dimensions; 0 is a scalar */
  perseus_dtype_t dtype;
} perseus_tensor_t;

/** Memory of the caller. */
typedef struct {
  void* data;
  size_t bytes;
} perseus_memory_t;

/** Runs once, when the operation is complete. This may be a moment after perseus_wait has returned,
 * so what `user` points to must live until then. Callbacks run one at a time; see
 * perseus_callback_thread_t. `message` is "" on success, and is valid only during the call. A
 * callback may call perseus_submit; it may call perseus_wait only with a time-out of 0. */
typedef void (*perseus_callback_t)(void* user, perseus_handle_t handle, perseus_status_t status,
                                   const char* message);

/** The threads on which callbacks may run. */
typedef int32_t perseus_callback_thread_t;
enum perseus_callback_thread {
  PERSEUS_CALLBACK_IN_LIBRARY = 0, /**< only on the library's own thread */
  /** Also on a thread that is in perseus_wait or another wait. That thread then learns of the
   * result soonest, since two thread switches take longer than a small operation. A thread that
   * waits for any operation must not hold a lock that the callback takes. */
  PERSEUS_CALLBACK_IN_WAIT = 1
};

/** Pass this in place of a stream if there is nothing to wait for. */
#ifdef __cplusplus
#define PERSEUS_NO_STREAM (reinterpret_cast<void*>(static_cast<intptr_t>(-1)))
#else
#define PERSEUS_NO_STREAM ((void*)(intptr_t)-1)
#endif

/** An operation for perseus_submit. */
typedef struct {
  size_t struct_size;
  int32_t id; /**< from perseus_register, which also determines the kind of operation */
  /** Several tensors form a group, which is agreed on, and completes, as one. */
  int32_t tensor_count;
  const perseus_tensor_t* tensors;
  perseus_reduce_op_t reduce_op; /**< ALLREDUCE: any, ADASUM of floating types;
                                    REDUCESCATTER: any but ADASUM */
  int32_t root;                  /**< BROADCAST: a rank of the world */
  double prescale;  /**< ALLREDUCE, REDUCESCATTER: inputs are multiplied by this first */
  double postscale; /**< ALLREDUCE, REDUCESCATTER: results are multiplied by this last */
  /** ALLTOALL: rows of the first dimension for each rank of the set; NULL for equal parts. */
  const int64_t* splits;
  int32_t split_count;
  int32_t priority;            /**< higher goes first */
  int32_t codec;               /**< from perseus_find_codec; 0: as PERSEUS_ALLREDUCE_DTYPE says */
  perseus_callback_t callback; /**< may be NULL */
  void* user;
  /** The device on which all tensors of the submission live. Every rank must name the same kind of
   * device. */
  perseus_device_t device;
  /** CUDA: the GPU's number in this process; -1: the GPU that holds the first input. */
  int32_t device_index;
  /** CUDA: the stream (cudaStream_t; NULL is the default one) whose work so far must be done before
   * the library reads the inputs and writes the outputs. PERSEUS_NO_STREAM: the library may do so
   * now. The stream must not be capturing a graph. When the operation is complete, every stream
   * sees the results. */
  void* stream;
  perseus_callback_thread_t callback_thread;
  /** ALLGATHER, ALLTOALL: for each tensor, memory for its result, on the same device; NULL if there
   * is none. It is used if the result turns out to have exactly that size. Otherwise the library
   * allocates the result as usual, and leaves this memory alone: the `data` of perseus_result
   * tells. Inputs lie elsewhere, but that of an allgather may be at its place in the result. */
  const perseus_memory_t* offered;
} perseus_submission_t;

/** Hands an operation over to the library and returns at once. After success, the caller must pass
 * *handle to perseus_release in the end. Most errors that this rank can see by itself (wrong
 * splits, an unknown root, a name that is already in flight, ...) are returned here. Other errors
 * (ranks' shapes that differ, a reduction that the type does not support, ...) end the operation.
 *
 * For each name, the first calls of all ranks match each other, then their second calls, and so on.
 * A call with wrong arguments counts, too: the matching operations of the other ranks end with
 * PERSEUS_MISMATCH and this rank's message. A call does not count if the submission or its
 * struct_size is missing, if the id is unknown, or if the name is in flight. */
PERSEUS_API perseus_status_t perseus_submit(const perseus_submission_t* submission,
                                            perseus_handle_t* handle);
/** Runs an operation to its end: perseus_submit, perseus_wait and perseus_release in one call. The
 * result goes to the outputs, which may not be NULL, so ALLGATHER, ALLTOALL and JOIN are not for
 * this function. A small ALLREDUCE, a small BROADCAST or a BARRIER of all ranks takes the least
 * time this way: if all are on one host and come within some microseconds of each other, they need
 * no agreement. Otherwise the operation goes the usual way, and it matches one that another rank
 * has submitted. The time-out is as for perseus_wait: after PERSEUS_IN_PROGRESS *handle is the
 * operation's, which goes on. In all other cases *handle is 0, and there is nothing to release.
 * Without a time-out, `handle` may be NULL. */
PERSEUS_API perseus_status_t perseus_run(const perseus_submission_t* submission,
                                         int64_t time_out_ms, perseus_handle_t* handle);
/** Tells the other ranks of a call that the caller's own checks of its arguments have refused. It
 * counts as a call of this name that perseus_submit has refused. The other ranks' error quotes the
 * operation's title and `reason`, a sentence; the two together are cut to 1024 bytes. While the
 * name is in flight, this returns PERSEUS_DUPLICATE_NAME and tells nobody. */
PERSEUS_API perseus_status_t perseus_refuse(int32_t id, const char* reason);
/** Returns the title that errors give the operation, such as "allreduce of 'conv1'"; "" for an id
 * that perseus_register never gave. The string is valid until this thread's next call of this
 * function. */
PERSEUS_API const char* perseus_title(int32_t id);
/** Any rank of the set, as the peer of perseus_recv. */
#define PERSEUS_ANY_RANK (-1)
/** Any tag below PERSEUS_FIRST_TAG_OF_LIBRARIES, as that of perseus_recv. */
#define PERSEUS_ANY_TAG (-1)
/** From here on, tags are those of libraries that send messages beside the program's own. Only a
 * receive that names such a tag takes a message that has it. */
#define PERSEUS_FIRST_TAG_OF_LIBRARIES (1 << 30)

/** One end of a message between two ranks. */
typedef struct {
  size_t struct_size;
  /** Both ranks belong to it. Messages of one set are never taken for those of another. */
  perseus_process_set_t set;
  int32_t peer; /**< the other rank, of the world; may be this one; perseus_recv: or
                   PERSEUS_ANY_RANK */
  int32_t tag;  /**< 0 or more; perseus_recv: or PERSEUS_ANY_TAG */
  /** perseus_send: its input is sent, with its shape and data type. perseus_recv: its output gets
   * the message, which must have this data type and number of elements. NULL takes whatever comes,
   * into memory of the library on the CPU; see perseus_result. */
  const perseus_tensor_t* tensor;
  int32_t priority;            /**< of the sender: higher goes first */
  perseus_callback_t callback; /**< may be NULL */
  void* user;
  perseus_callback_thread_t callback_thread;
  /** A reason, if the caller's own checks have refused the call: the other end of the message then
   * fails with PERSEUS_MISMATCH and this reason, and so does this one. The tensor is not looked at.
   * NULL: there is none. */
  const char* refusal;
  /** perseus_send: from perseus_find_codec; encodes a float32 tensor on its way to another rank,
   * which decodes it without being told. 0: none. */
  int32_t codec;
  /** Where the tensor is, as in perseus_submission_t; the two ends may differ. A tensor on a GPU
   * travels by way of the host's memory. The message is read, or written, after the work that is in
   * the stream now; it is complete when the GPU is done with the tensor. */
  perseus_device_t device;
  int32_t device_index;
  void* stream;
} perseus_transfer_t;

/** Begins to send a tensor to one rank, and returns at once. It needs no agreement, and any number
 * of messages may be under way. *handle is as that of perseus_submit. The send is complete when the
 * tensor may be used again: at once if the message is small and the receiver has room for it, and
 * when the receiver has asked for it, or has room, otherwise. PERSEUS_MESSAGE_CREDIT says how much
 * a rank keeps for each other one. So two ranks may send to each other first, and then receive. A
 * message that is already complete here is lost if the receiver never asks for it. If the tensor is
 * refused here, the receiver's end fails, too. */
PERSEUS_API perseus_status_t perseus_send(const perseus_transfer_t* message,
                                          perseus_handle_t* handle);
/** Begins to receive a message from one rank, or from any. Messages from one rank that this could
 * take are taken in the order in which they were sent, and receives that could take a message get
 * it in the order of these calls. If the message does not fit, this and a send that is not complete
 * end with PERSEUS_MISMATCH. If the sender leaves without having sent it, this ends with
 * PERSEUS_ABORTED. */
PERSEUS_API perseus_status_t perseus_recv(const perseus_transfer_t* message,
                                          perseus_handle_t* handle);
/** Returns 1 if the operation is complete, 0 if not, and -1 for an unknown handle. A forked child
 * does not know its parent's handles: functions that return a status return PERSEUS_NOT_INITIALIZED
 * for them. */
PERSEUS_API int32_t perseus_poll(perseus_handle_t handle);
/** Waits for the operation and returns its status. A negative time_out_ms waits without bound. If
 * the time-out ends first, this returns PERSEUS_IN_PROGRESS and the operation goes on. While the
 * thread waits, it may do the library's work, which completes a small operation fastest. It runs
 * only those callbacks that allow PERSEUS_CALLBACK_IN_WAIT. */
PERSEUS_API perseus_status_t perseus_wait(perseus_handle_t handle, int64_t time_out_ms);

/** Makes a CUDA stream (cudaStream_t) wait for the operation's results, which are on a GPU: work
 * that is queued to the stream from now on sees them. Returns as soon as all of the operation's
 * work is queued on the GPU, so that the caller need not wait until it is done. If the tensors
 * travel by way of the host, it returns when the operation is complete. After this has returned,
 * the name may be used again, and the tensors may be used and freed in the order of that stream.
 * Once the operation is complete, they may be used and freed anywhere. If something goes wrong on
 * the GPU later, perseus_wait reports it, and later operations fail. For tensors on the CPU, and
 * for a stream that is capturing a graph, this is the same as perseus_wait. */
PERSEUS_API perseus_status_t perseus_wait_on_stream(perseus_handle_t handle, void* stream,
                                                    int64_t time_out_ms);

/** A tensor of a complete operation. */
typedef struct {
  size_t struct_size;
  void* data; /**< NULL if it has no elements */
  const int64_t* shape;
  int32_t rank;
  perseus_dtype_t dtype;
  /** ALLTOALL: rows received from each rank of the set; else NULL and 0. */
  const int64_t* received_splits;
  int32_t received_split_count;
  int32_t last_rank; /**< JOIN: the rank that joined last; else -1 */
  perseus_device_t device;
  int32_t device_index; /**< CUDA: the GPU's number in this process; else -1 */
  /** How many operations the process set has agreed on, with this one: the same number on all ranks
   * of the set, and never again in this world. */
  uint64_t sequence;
  int32_t source; /**< perseus_recv: the rank that sent the message; else -1 */
  int32_t tag;    /**< perseus_recv: the message's; else -1 */
} perseus_result_t;

/** Describes result `index` of a complete operation. The description is valid until
 * perseus_release. */
PERSEUS_API perseus_status_t perseus_result(perseus_handle_t handle, int32_t index,
                                            perseus_result_t* result);
/** Takes over the memory that the library allocated for result `index`. The memory then outlives
 * the handle, and must be passed to perseus_free or perseus_free_on_stream. Returns NULL if the
 * result went into the caller's own output, or if there is no such result. */
PERSEUS_API void* perseus_take_result(perseus_handle_t handle, int32_t index);
/** Frees what perseus_take_result returned. NULL is allowed. */
PERSEUS_API void perseus_free(void* data);
/** Like perseus_free, for GPU memory that is used only by work already queued to this CUDA stream
 * (cudaStream_t): when that work is done, another result may use the memory. perseus_free and
 * perseus_release know no stream, so they make CUDA wait until the GPU is idle. */
PERSEUS_API void perseus_free_on_stream(void* data, void* stream);
/** Forgets the handle. An operation still under way goes on, and its callback still runs. */
PERSEUS_API void perseus_release(perseus_handle_t handle);

/** @} */

/** @defgroup proofs Proofs
 * A rank that acts on what another has sent, as on an object that it unpickles, must know that it
 * comes from that rank. By default anybody between two hosts can change what operations carry. A
 * proof can be made by the ranks of this world alone.
 * @{ */

#define PERSEUS_PROOF_BYTES 16

/** What a proof is about. Sender and receivers must fill in the same. */
typedef struct {
  size_t struct_size;
  perseus_process_set_t process_set;
  int32_t sender;   /**< its rank in the world */
  const char* what; /**< UTF-8; errors call the message so. Use one title for one use. */
  /** perseus_result's, of an operation that the sender and all receivers have completed before the
   * sender made the proof, so that an older message cannot take the place of this one. 0: none. */
  uint64_t sequence;
  const void* data;
  size_t bytes;
} perseus_message_t;

/** Writes PERSEUS_PROOF_BYTES bytes to `proof`: a MAC under a key of this world. The sender must be
 * this rank. */
PERSEUS_API perseus_status_t perseus_prove(const perseus_message_t* message, void* proof);
/** Returns PERSEUS_OK if `proof` is the sender's for this message. Otherwise returns
 * PERSEUS_ABORTED: this rank cannot go on, and from now on all operations, on all ranks, fail with
 * the same message, which names what was changed. */
PERSEUS_API perseus_status_t perseus_check_proof(const perseus_message_t* message,
                                                 const void* proof);

/** @} */

/** @defgroup gradients Gradients of a training loop
 * @{ */

/** A layer above single operations, for programs that train a model by hand and for authors of
 * adapters. Gradients are registered once, in the order in which the forward pass uses their
 * layers. In each batch, each gradient is submitted once, as soon as the backward pass has computed
 * it, and is reduced in the background; the gradients of the first layers go first. The program
 * waits for each parameter's gradient just before it next uses the parameter, or is told when the
 * whole batch is done.
 *
 * All ranks must create and destroy their objects alike, and must register the same gradients in
 * the same order. If they do not, the first batch ends with PERSEUS_MISMATCH on all of them, and so
 * do all waits and all later submissions. Ranks may submit their gradients in any order. Only one
 * thread at a time may use an object, except that any thread may call perseus_gradients_wait at any
 * time. The buffers belong to the library from perseus_gradients_submit until that gradient is
 * done. */
typedef struct perseus_gradients perseus_gradients_t;

/** Options of perseus_gradients_create. Both callbacks may be NULL. They run one at a time, on the
 * threads that callback_thread names, must be short, and must not wait. They may submit. `message`
 * is "" on success, and is valid only during the call. */
typedef struct {
  size_t struct_size;
  const char* name; /**< prefix of the names by which ranks match gradients: must differ between the
                       models of a process. NULL: "gradients" */
  perseus_process_set_t set;
  perseus_reduce_op_t reduce_op;
  double scale;  /**< results are multiplied by this, last; 0 means 1 */
  int32_t codec; /**< from perseus_find_codec; 0: as PERSEUS_ALLREDUCE_DTYPE says */
  perseus_device_t device;
  int32_t device_index; /**< CUDA: as in perseus_submission_t */
  /** A gradient is done: its buffer holds the result if status is PERSEUS_OK. */
  void (*gradient_done)(void* user, int32_t gradient, perseus_status_t status, const char* message);
  /** All gradients of a batch are done, and gradient_done has returned for each. Batches count from
   * 0. The status is that of the first gradient that failed, or PERSEUS_OK. */
  void (*batch_done)(void* user, int64_t batch, perseus_status_t status, const char* message);
  void* user;
  perseus_callback_thread_t callback_thread; /**< ignored without callbacks */
} perseus_gradients_options_t;

/** If options is NULL, gradients are averaged over all ranks, without callbacks. This may be called
 * before init. */
PERSEUS_API perseus_status_t perseus_gradients_create(const perseus_gradients_options_t* options,
                                                      perseus_gradients_t** gradients);
/** Registers the next gradient and gives its number: 0, 1, ... All must be registered before the
 * first is submitted. In `tensor`, input is where the backward pass writes the gradient, and output
 * is where the result goes; a NULL output means the same place. The shape is copied. Returns
 * PERSEUS_INVALID_ARGUMENT for a name that is registered already, and for a tensor that
 * perseus_submit would refuse. */
PERSEUS_API perseus_status_t perseus_gradients_add(perseus_gradients_t* gradients, const char* name,
                                                   const perseus_tensor_t* tensor,
                                                   int32_t* gradient);
/** Submits a gradient that the backward pass has computed or, on a GPU, will have computed when the
 * work now queued to `stream` is done (see perseus_submission_t; ignored for tensors on the CPU).
 * Does not block. Returns PERSEUS_INVALID_ARGUMENT if the gradient was already submitted in this
 * batch, or is still under way. A batch ends when all gradients have been submitted. Callbacks may
 * call this while another thread submits other gradients.
 *
 * A call that fails does not count as a submission: the batch is not done until the gradient has
 * been submitted again. Until then, a wait for the gradient first waits for its earlier submission,
 * if there is one, and then returns the error. If the library refuses the tensor or an option, the
 * other ranks' calls fail, too. They are not told of a call for a gradient that this rank has
 * already submitted in this batch or that is still under way. */
PERSEUS_API perseus_status_t perseus_gradients_submit(perseus_gradients_t* gradients,
                                                      int32_t gradient, void* stream);
/** Waits until the gradient's last submission is done, and until the ranks have compared the
 * gradients that they registered, which they do once, when the first gradient is submitted. Returns
 * the gradient's status, or the error of a submission that was refused since then, or PERSEUS_OK if
 * nothing was submitted. The time-out is as for perseus_wait. The call may return before
 * gradient_done has returned. */
PERSEUS_API perseus_status_t perseus_gradients_wait(perseus_gradients_t* gradients,
                                                    int32_t gradient, int64_t time_out_ms);
/** Waits for all gradients in the same way. Returns the status of the first that failed, or
 * PERSEUS_OK. */
PERSEUS_API perseus_status_t perseus_gradients_wait_all(perseus_gradients_t* gradients,
                                                        int64_t time_out_ms);
/** Makes a CUDA stream wait instead of this thread; see perseus_wait_on_stream. */
PERSEUS_API perseus_status_t perseus_gradients_wait_on_stream(perseus_gradients_t* gradients,
                                                              int32_t gradient, void* stream,
                                                              int64_t time_out_ms);
/** Destroys the object, once gradients that are under way are done and callbacks have returned.
 * Must not be called from a callback. If this rank gives up in the middle of a batch, the other
 * ranks may never submit their part: call perseus_shutdown_because first, which ends these
 * operations. NULL is allowed. */
PERSEUS_API void perseus_gradients_destroy(perseus_gradients_t* gradients);

/** @} */

/** @defgroup codecs Codecs
 * @{ */

/** A way to make float32 tensors smaller on the wire. All ranks must submit an operation with the
 * codec of the same name, and that codec must do the same on all ranks. The functions run on a
 * thread of the library and must not block. */
typedef struct {
  size_t struct_size;
  const char* name;
  /** Returns the bytes that `elements` floats take when encoded. Must be a pure function. */
  size_t (*encoded_size)(void* user, size_t elements);
  void (*encode)(void* user, const float* elements, size_t count, void* encoded);
  void (*decode)(void* user, const void* encoded, float* elements, size_t count);
  /** Nonzero: the library keeps what the encoding of a tensor loses, and adds it to that tensor's
   * values in the next operation of the same name. */
  int32_t error_feedback;
  void* user;
} perseus_codec_t;

/** Registers a codec and gives its id, for submissions. The id is computed from the name, so it is
 * the same on all ranks. The structure is copied; `user` and the functions must live until the
 * process ends. Returns PERSEUS_INVALID_ARGUMENT if the name is taken. */
PERSEUS_API perseus_status_t perseus_register_codec(const perseus_codec_t* codec, int32_t* id);
/** Finds a codec's id by its name; "none", "fp16" and "bf16" are built in. Returns
 * PERSEUS_INVALID_ARGUMENT if there is no such codec. */
PERSEUS_API perseus_status_t perseus_find_codec(const char* name, int32_t* id);
/** Notes the residuals of error feedback, of all tensors, as those of the state of the model that
 * the program keeps now, to go back to it after a failure. Call it where the program saves its
 * model, while no operation is under way. It copies nothing, and works before init, too. */
PERSEUS_API void perseus_commit_residuals(void);
/** Goes back to the residuals of the last perseus_commit_residuals, as the program goes back to the
 * model that it saved there: the steps since then do not count, and will be done again. Without a
 * commit it does nothing. An operation that is under way goes back when it ends. */
PERSEUS_API void perseus_restore_residuals(void);
/** Forgets all residuals: this rank goes on from a model that was saved elsewhere, or that has
 * nothing to do with its last gradients. Call it while no operation is under way. */
PERSEUS_API void perseus_forget_residuals(void);

/** @} */

/** @defgroup observation Observation
 * @{ */

/** Starts a Chrome-trace timeline. Rank 0 writes it; on other ranks this does nothing. mark_cycles
 * marks each agreement. Returns PERSEUS_NOT_INITIALIZED before init. */
PERSEUS_API perseus_status_t perseus_start_timeline(const char* path, int32_t mark_cycles);
/** Ends the timeline. Does nothing if none is being written. Returns PERSEUS_NOT_INITIALIZED before
 * init. */
PERSEUS_API perseus_status_t perseus_stop_timeline(void);

/** Calls `visit` for every counter of this process, in the order of docs/counters.md. */
PERSEUS_API perseus_status_t perseus_counters(void (*visit)(void* user, const char* name,
                                                            uint64_t value),
                                              void* user);

/** One setting: a row of docs/settings.md. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* type; /**< "int", "float", "bool", "string", "choice" */
  const char* default_value;
  const char* range; /**< "1 .. 64", or the choices, or "" */
  const char* since;
  const char* aliases; /**< names in Horovod or Ali-Perseus that set it, too, comma-separated */
  const char* help;
  /** As init read it in this process; before init, as the environment has it now. The tuner may use
   * another value. */
  const char* value;
} perseus_setting_t;

/** Calls `visit` for every setting, in the order of docs/settings.md. The strings are valid only
 * during the call. */
PERSEUS_API perseus_status_t perseus_settings(void (*visit)(void* user,
                                                            const perseus_setting_t* setting),
                                              void* user);

/** Checks the settings in an environment, as perseus_init does, for a launcher that wants to know
 * before it starts a rank. `environment`: "NAME=value" strings, ended by a null pointer.
 * PERSEUS_INVALID_ARGUMENT for a malformed value; the message names the variable. */
PERSEUS_API perseus_status_t perseus_check_environment(const char* const* environment);

/** @} */

/** @defgroup rendezvous Rendezvous (for launchers)
 * @{ */

/** The service through which the ranks of a job find each other. */
typedef struct perseus_rendezvous perseus_rendezvous_t;
/** Serves the exchange of addresses for a job of `size` ranks, which may be 0 at first, on
 * `address` ("" for every interface; several are separated by commas) and *port (0: any free port,
 * which is written back). `secret` is the job's secret, in hexadecimal. `hosts` gives the
 * host of each rank, for errors; NULL if they are unknown. */
PERSEUS_API perseus_status_t perseus_rendezvous_start(const char* address, int32_t* port,
                                                      int32_t size, const char* secret,
                                                      const char* const* hosts,
                                                      perseus_rendezvous_t** rendezvous);
/** Tells the rendezvous that the launcher starts one more rank, whose number is the next one.
 * `host` is for errors, and counts only if perseus_rendezvous_start has been given hosts. */
PERSEUS_API perseus_status_t perseus_rendezvous_add_rank(perseus_rendezvous_t* rendezvous,
                                                         const char* host);
/** Tells the rendezvous that the process of this rank has ended. Ranks that wait for it then
 * fail instead of waiting in vain. `how`, such as "exited with code 1", goes into their error; it
 * may be NULL. */
PERSEUS_API perseus_status_t perseus_rendezvous_note_ended(perseus_rendezvous_t* rendezvous,
                                                           int32_t rank, const char* how);
/** Returns 1 if these launched ranks have met, in this order, in a world of this name; 0 if not; -1
 * without a rendezvous. Only the engines of a world know its name, with which they begin what they
 * report to their launcher. */
PERSEUS_API int32_t perseus_rendezvous_has_met(perseus_rendezvous_t* rendezvous, const char* world,
                                               const int32_t* ranks, int32_t count);
/** Stops serving. Ranks that have not met by then fail. NULL is allowed. */
PERSEUS_API void perseus_rendezvous_stop(perseus_rendezvous_t* rendezvous);

/** Adds folders, separated by colons, that are searched for libcuda, libcudart and libnccl if the
 * process has not loaded them. The system's loader comes after these folders. Call this before the
 * first tensor on a GPU. */
PERSEUS_API void perseus_add_library_folders(const char* folders);
/** Calls `visit` for each thing that was looked for on this machine, with what was found: the CPU's
 * instructions, MPI, the CUDA libraries, NCCL, and the kernels in this library. */
PERSEUS_API perseus_status_t perseus_check_build(void (*visit)(void* user, const char* what,
                                                               const char* found),
                                                 void* user);

/** Measures how far apart two processors are: the time in which a cache line that one of them has
 * written comes to the other, in nanoseconds. It is some 30 ns under one last-level cache, and over
 * 100 ns between two. Keeps both processors busy for about a millisecond. Returns
 * PERSEUS_INVALID_ARGUMENT if the two are one, or this process may not run on both;
 * PERSEUS_TIMED_OUT if others compute there all the time. */
PERSEUS_API perseus_status_t perseus_core_distance(int32_t first, int32_t second,
                                                   double* nanoseconds);

/** This machine's support for tensors on GPUs. Each library's version is as it numbers itself; 0
 * means that it is missing or cannot be used. */
typedef struct {
  size_t struct_size;
  int32_t cuda_driver; /**< 13020 is CUDA 13.2 */
  int32_t cuda_runtime;
  int32_t nccl;        /**< 22105 is 2.21.5; 0 also without a driver */
  int32_t has_kernels; /**< 1 if this library was built with them */
} perseus_gpu_support_t;

/** Opens CUDA's libraries and NCCL if that has not been done yet. Does not start CUDA itself. */
PERSEUS_API perseus_status_t perseus_gpu_support(perseus_gpu_support_t* support);

/** @} */

#ifdef __cplusplus
}
#endif

#endif /* PERSEUS_PERSEUS_H_ */
