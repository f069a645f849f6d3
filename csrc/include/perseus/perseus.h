/* perseus.h: the C interface of Perseus, the communication layer under data-parallel training.
 *
 * C99. Every call may be made from any thread. Every call that can fail returns a perseus_status_t;
 * perseus_last_error() then gives the message of the calling thread's last failure. Structures that
 * are passed in begin with struct_size, which the caller sets to sizeof: fields are only ever added
 * at the end. Buffers passed to perseus_submit belong to the library from then until the operation
 * is complete. Callbacks run on a thread of the library, or, where the caller allows it, on one
 * that waits: they must be short, must not block, and must not throw. What would wait there for
 * itself returns PERSEUS_INVALID_ARGUMENT. A child that a callback forks may only exec or _exit
 * there.
 */
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

typedef int32_t perseus_status_t;
enum {
  PERSEUS_OK = 0,
  PERSEUS_INVALID_ARGUMENT = 1, /* the caller's mistake, seen before anything was sent */
  PERSEUS_NOT_INITIALIZED = 2,  /* before init, or after shutdown */
  PERSEUS_ABORTED = 3,          /* a peer died or left, or this process shut down */
  PERSEUS_MISMATCH = 4,         /* ranks described one name differently */
  PERSEUS_DUPLICATE_NAME = 5,   /* the name is already in flight here */
  PERSEUS_TIMED_OUT = 6,
  PERSEUS_UNREACHABLE = 7, /* a host or port could not be reached */
  PERSEUS_UNSUPPORTED = 8,
  PERSEUS_OUT_OF_MEMORY = 9,
  PERSEUS_INTERNAL = 10,    /* a fault of Perseus itself */
  PERSEUS_IN_PROGRESS = 11, /* perseus_wait: the time-out ended first */
  PERSEUS_NON_FINITE = 12   /* a NaN or infinity, where PERSEUS_ALLREDUCE_NANCHECK is raise */
};

typedef int32_t perseus_dtype_t;
enum {
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

/* The numbers are Horovod's. */
typedef int32_t perseus_reduce_op_t;
enum {
  PERSEUS_AVERAGE = 0,
  PERSEUS_SUM = 1,
  PERSEUS_ADASUM = 2,
  PERSEUS_MIN = 3,
  PERSEUS_MAX = 4,
  PERSEUS_PRODUCT = 5
};

typedef int32_t perseus_operation_t;
enum {
  PERSEUS_ALLREDUCE = 0,
  PERSEUS_BROADCAST = 1,
  PERSEUS_ALLGATHER = 2,
  PERSEUS_ALLTOALL = 3,
  PERSEUS_REDUCESCATTER = 4,
  PERSEUS_BARRIER = 5,
  PERSEUS_JOIN = 6
};

/* Where tensors live. */
typedef int32_t perseus_device_t;
enum {
  PERSEUS_CPU = 0,
  PERSEUS_CUDA = 1 /* a GPU that CUDA speaks to */
};

/* A process set; 0 is the set of all ranks. */
typedef int32_t perseus_process_set_t;
#define PERSEUS_WORLD 0

/* A submitted operation. Never 0. */
typedef int64_t perseus_handle_t;

/* The version as one number: major * 10000 + minor * 100 + patch. */
PERSEUS_API int32_t perseus_version(void);
/* Message of the last call of this thread that failed; "" if none has. Valid until this thread's
 * next failing call. */
PERSEUS_API const char* perseus_last_error(void);
/* Short name of a status code, such as "invalid argument". */
PERSEUS_API const char* perseus_status_name(perseus_status_t status);

/* ---- Process ------------------------------------------------------------------------------- */

typedef struct {
  size_t struct_size;
  /* Launched ranks that form the world; NULL and 0 for all. Ranks left out get a world of one. */
  const int32_t* ranks;
  int32_t rank_count;
} perseus_init_options_t;

/* From now on, calls of this thread that block other than in perseus_wait (perseus_init, and those
 * that make or remove process sets) ask `check` some 20 times a second, and end with
 * PERSEUS_ABORTED when it gives anything but 0. NULL: they ask nobody. */
PERSEUS_API void perseus_set_interruption_check(int (*check)(void* user), void* user);

/* Says that this memory is about to be written as a whole, as a fresh output is: if it is large,
 * the kernel is asked for huge pages, without which it takes longer to come by than to fill. The
 * library does so for results that it allocates. */
PERSEUS_API void perseus_prefer_huge_pages(void* memory, size_t bytes);

/* Joins the other processes. Reads the settings from the environment. Blocks until all have come or
 * the start time-out ends. A second call without shutdown between does nothing. options may be
 * NULL. */
PERSEUS_API perseus_status_t perseus_init(const perseus_init_options_t* options);
/* Leaves. What all ranks have agreed on may still complete, for 2 s; other operations under way,
 * here and on the other ranks, end with PERSEUS_ABORTED. perseus_init may be called again. Harmless
 * when not initialised. */
PERSEUS_API perseus_status_t perseus_shutdown(void);
/* The same for a program that fails: `why`, a few words, is in the errors of the other ranks. */
PERSEUS_API perseus_status_t perseus_shutdown_because(const char* why);
/* 1 between a perseus_init that succeeded and shutdown, else 0; also 0 in a forked child. */
PERSEUS_API int32_t perseus_is_initialized(void);

/* -1 when not initialised. cross: among the ranks with this local rank, one a host. */
PERSEUS_API int32_t perseus_rank(void);
PERSEUS_API int32_t perseus_size(void);
PERSEUS_API int32_t perseus_local_rank(void);
PERSEUS_API int32_t perseus_local_size(void);
PERSEUS_API int32_t perseus_cross_rank(void);
PERSEUS_API int32_t perseus_cross_size(void);
/* 1 if every host has the same number of ranks, 0 if not, -1 when not initialised. */
PERSEUS_API int32_t perseus_is_homogeneous(void);
/* The thread support that MPI was initialised with, where the ranks met by MPI: 0 single,
 * 1 funneled, 2 serialized, 3 multiple. -1 where they met without MPI, or when not initialised. */
PERSEUS_API int32_t perseus_mpi_thread_level(void);

/* ---- Process sets -------------------------------------------------------------------------- */

/* Makes a set of these ranks. Called by all ranks of the world, members or not, with the same
 * ranks; blocks until all have. The ids are the same on all ranks. A set of the same ranks that
 * exists already is PERSEUS_INVALID_ARGUMENT. */
PERSEUS_API perseus_status_t perseus_add_process_set(const int32_t* ranks, int32_t rank_count,
                                                     perseus_process_set_t* set);
/* Takes a set away. Called by all ranks of the world; blocks until all have. */
PERSEUS_API perseus_status_t perseus_remove_process_set(perseus_process_set_t set);
/* A set that its members alone open and close, for those who have agreed on it by other means.
 * Every member gives the same ranks, and the same id from PERSEUS_FIRST_OPENED_SET to
 * PERSEUS_LAST_OPENED_SET. An id stands for one set only, in all its members, and until the next
 * init. PERSEUS_INVALID_ARGUMENT if this rank is no member, or has used the id before. */
#define PERSEUS_FIRST_OPENED_SET (1 << 20)
#define PERSEUS_LAST_OPENED_SET ((1 << 23) - 1)
PERSEUS_API perseus_status_t perseus_open_process_set(perseus_process_set_t set,
                                                      const int32_t* ranks, int32_t rank_count);
/* Takes the set away on this rank, and ends it on the other members: what they have agreed on still
 * is done by all, and everything else of the set fails, here with PERSEUS_INVALID_ARGUMENT and
 * there with PERSEUS_ABORTED. Their sets have to be closed, too. Blocks while a round of agreement
 * that this rank takes part in comes to its end, for 1 s if a member never opened the set. */
PERSEUS_API perseus_status_t perseus_close_process_set(perseus_process_set_t set);
/* This process's rank in the set, -1 if it is no member or there is no such set. */
PERSEUS_API int32_t perseus_process_set_rank(perseus_process_set_t set);
/* Number of ranks in the set; -1 if there is no such set. */
PERSEUS_API int32_t perseus_process_set_size(perseus_process_set_t set);
/* Writes the set's ranks, ascending; ranks must hold perseus_process_set_size(set). */
PERSEUS_API perseus_status_t perseus_process_set_ranks(perseus_process_set_t set, int32_t* ranks);
/* Writes up to `capacity` ids, ascending, and gives the number of sets there are. */
PERSEUS_API int32_t perseus_process_sets(perseus_process_set_t* ids, int32_t capacity);

/* ---- Operations ---------------------------------------------------------------------------- */

/* Gives `name` a small id, the same each time it is asked for. Ranks match operations by set, kind
 * and name, so the same name may be used for different kinds. Names hold 1 to 4096 bytes. Does not
 * communicate; may be called before init; ids hold until the process ends. */
PERSEUS_API perseus_status_t perseus_register(perseus_process_set_t set,
                                              perseus_operation_t operation, const char* name,
                                              int32_t* id);

/* Row-major, contiguous. */
typedef struct {
  const void* input;
  /* Where the result goes; may equal input. NULL: the library allocates it (see perseus_result).
   * ALLGATHER and ALLTOALL, whose result's size is not known before, take only NULL. */
  void* output;
  const int64_t* shape;
  int32_t rank; /* number of dimensions; 0 is a scalar */
  perseus_dtype_t dtype;
} perseus_tensor_t;

/* Runs once, when the operation is complete, and maybe a moment after perseus_wait has returned: so
 * what `user` points to must live until then. One at a time, see perseus_callback_thread_t.
 * `message` is "" on success and lives only during the call. perseus_submit may be called from
 * here; perseus_wait only looks, with a time-out of 0. */
typedef void (*perseus_callback_t)(void* user, perseus_handle_t handle, perseus_status_t status,
                                   const char* message);

/* Where callbacks run. */
typedef int32_t perseus_callback_thread_t;
enum {
  PERSEUS_CALLBACK_IN_LIBRARY = 0, /* on the library's thread, whatever others wait for */
  /* Also on a thread that is in perseus_wait or another wait, which is told soonest: two changes of
   * threads take longer than a small operation. Who waits, for whatever, must not hold a lock that
   * the callback wants. */
  PERSEUS_CALLBACK_IN_WAIT = 1
};

/* In place of a stream: there is nothing to wait for. */
#ifdef __cplusplus
#define PERSEUS_NO_STREAM (reinterpret_cast<void*>(static_cast<intptr_t>(-1)))
#else
#define PERSEUS_NO_STREAM ((void*)(intptr_t)-1)
#endif

typedef struct {
  size_t struct_size;
  int32_t id; /* from perseus_register, which also says which operation it is */
  /* Several tensors form a group: agreed on, and complete, as one. */
  int32_t tensor_count;
  const perseus_tensor_t* tensors;
  perseus_reduce_op_t reduce_op; /* ALLREDUCE: any, ADASUM of floating types;
                                    REDUCESCATTER: SUM, AVERAGE */
  int32_t root;                  /* BROADCAST: a rank of the world */
  double prescale;               /* ALLREDUCE, REDUCESCATTER: inputs are multiplied by it first */
  double postscale;              /* and results by this, last */
  /* ALLTOALL: rows of the first dimension for each rank of the set; NULL for equal parts. */
  const int64_t* splits;
  int32_t split_count;
  int32_t priority; /* higher goes first */
  int32_t
      codec; /* how bytes are coded on the wire: from perseus_find_codec; 0 as the settings say */
  perseus_callback_t callback; /* may be NULL */
  void* user;
  /* Where the tensors live, all of one submission on one device; every rank says the same kind. */
  perseus_device_t device;
  /* CUDA: the GPU's number in this process; -1: that on which the first input's memory is. */
  int32_t device_index;
  /* CUDA: the stream (cudaStream_t; NULL is the default one) after whose work of now the inputs are
   * there and the outputs may be written; PERSEUS_NO_STREAM: they are there, and the outputs may be
   * written, now. Not one that is being captured into a graph. When the operation is complete the
   * results are there for every stream. */
  void* stream;
  perseus_callback_thread_t callback_thread;
} perseus_submission_t;

/* Hands an operation over and returns at once. On success *handle must be given to perseus_release
 * in the end. A mistake seen here (wrong splits, unknown root, name already in flight, ...) is
 * returned; what only the ranks together can see (shapes that differ, ...) ends the operation.
 *
 * Ranks match their calls of a name in order, and a call whose arguments are wrong counts: what the
 * other ranks submit for it ends there with PERSEUS_MISMATCH, and with this rank's message. Not if
 * it does not say which call it is: without a submission, its struct_size or an id that there is,
 * or of a name that is in flight. */
PERSEUS_API perseus_status_t perseus_submit(const perseus_submission_t* submission,
                                            perseus_handle_t* handle);
/* For those who check arguments of their own before they submit: this rank's call of the name has
 * failed, as if perseus_submit had refused it. The other ranks are told the reason, a sentence,
 * after the operation's title; of both the first 1024 bytes. PERSEUS_DUPLICATE_NAME, and nothing is
 * told, while the name is in flight. */
PERSEUS_API perseus_status_t perseus_refuse(int32_t id, const char* reason);
/* What errors call the operation of an id from perseus_register, such as "allreduce of 'conv1'"; ""
 * for an id that was never given. Lives until this thread's next call of it. */
PERSEUS_API const char* perseus_title(int32_t id);
/* Whether the operation is complete: 1, 0, or -1 for an unknown handle. To a forked child the
 * handles of its parent are unknown; what returns a status says PERSEUS_NOT_INITIALIZED for them.
 */
PERSEUS_API int32_t perseus_poll(perseus_handle_t handle);
/* Waits for the operation and returns its status. time_out_ms < 0 waits without bound; when it
 * ends first the result is PERSEUS_IN_PROGRESS and the operation goes on. Meanwhile the thread may
 * do the library's work, by which a small operation is done fastest; of callbacks it runs those
 * alone that may run in a wait. */
PERSEUS_API perseus_status_t perseus_wait(perseus_handle_t handle, int64_t time_out_ms);

/* Has a CUDA stream (cudaStream_t) wait for the operation's results, which are on a GPU: what is
 * queued to it from now on finds them. Returns as soon as all work is queued on the GPU, so that
 * the caller need not wait for its end; by way of the host, when the operation is complete. From
 * then on the name may be used again, and the tensors may be used and freed in the order of that
 * stream, as they may by anybody once the operation is complete. Of what goes wrong later on the
 * GPU, perseus_wait tells, and operations that come after fail. For tensors on the CPU, and for a
 * stream that is being captured into a graph, it is perseus_wait. */
PERSEUS_API perseus_status_t perseus_wait_on_stream(perseus_handle_t handle, void* stream,
                                                    int64_t time_out_ms);

/* A tensor of a complete operation. */
typedef struct {
  size_t struct_size;
  void* data; /* NULL if it has no elements */
  const int64_t* shape;
  int32_t rank;
  perseus_dtype_t dtype;
  /* ALLTOALL: rows received from each rank of the set; else NULL and 0. */
  const int64_t* received_splits;
  int32_t received_split_count;
  int32_t last_rank; /* JOIN: the rank that joined last; else -1 */
  perseus_device_t device;
  int32_t device_index; /* CUDA: the GPU's number in this process; else -1 */
} perseus_result_t;

/* Describes result `index` of a complete operation; valid until perseus_release. */
PERSEUS_API perseus_status_t perseus_result(perseus_handle_t handle, int32_t index,
                                            perseus_result_t* result);
/* Takes over memory that the library allocated for result `index`: it then outlives the handle and
 * must be given to perseus_free. NULL where the result went into the caller's own output. */
PERSEUS_API void* perseus_take_result(perseus_handle_t handle, int32_t index);
/* Of what perseus_take_result gave; NULL is allowed. */
PERSEUS_API void perseus_free(void* data);
/* The same for memory of a GPU that is still used by nothing but what this CUDA stream
 * (cudaStream_t) has been given so far: when that is done, the memory goes to another result.
 * perseus_free and perseus_release, which know no stream, have CUDA wait until the GPU is idle. */
PERSEUS_API void perseus_free_on_stream(void* data, void* stream);
/* Forgets the handle. An operation that is still under way goes on; its callback still runs. */
PERSEUS_API void perseus_release(perseus_handle_t handle);

/* ---- Gradients of a training loop ---------------------------------------------------------- */

/* A layer above single operations, for who trains a model by hand or writes an adapter. The
 * gradients are registered once, in the order in which forward uses their layers. In each batch
 * each is submitted once, as soon as backward has computed it, and is reduced meanwhile, those of
 * the first layers before others. Who updates waits for each parameter's just before its next use,
 * or is told when all of the batch are done.
 *
 * All ranks make, and destroy, their objects alike, and register the same gradients, in the same
 * order. If not, the first batch ends with PERSEUS_MISMATCH on all of them, and so do all waits and
 * whatever is submitted later. They may submit them in any order. One thread at a time may use an
 * object, but perseus_gradients_wait may be called by any thread at any time. The buffers belong to
 * the library from perseus_gradients_submit until that gradient is done. */
typedef struct perseus_gradients perseus_gradients_t;

typedef struct {
  size_t struct_size;
  const char* name; /* what the names begin with by which ranks match them: must differ between
                       the models of a process. NULL: "gradients" */
  perseus_process_set_t set;
  perseus_reduce_op_t reduce_op;
  double scale;  /* results are multiplied by it, last; 0 is as 1 */
  int32_t codec; /* from perseus_find_codec; 0 as the settings say */
  perseus_device_t device;
  int32_t device_index; /* CUDA: as in perseus_submission_t */
  /* Both may be NULL, and run one at a time where callback_thread says: short, and without waiting.
   * They may submit. `message` is "" on success and lives only during the call. */
  /* A gradient is done: its buffer holds the result if status is PERSEUS_OK. */
  void (*gradient_done)(void* user, int32_t gradient, perseus_status_t status, const char* message);
  /* All gradients of a batch, counted from 0, are done, and gradient_done has returned for each.
   * The status is that of the first that failed, or PERSEUS_OK. */
  void (*batch_done)(void* user, int64_t batch, perseus_status_t status, const char* message);
  void* user;
  perseus_callback_thread_t callback_thread; /* not used without callbacks */
} perseus_gradients_options_t;

/* options may be NULL: averages over all ranks, without callbacks. May be called before init. */
PERSEUS_API perseus_status_t perseus_gradients_create(const perseus_gradients_options_t* options,
                                                      perseus_gradients_t** gradients);
/* Registers the next gradient, before the first is submitted, and gives its number: 0, 1, ...
 * `tensor`: input is where backward writes it, output where the result goes, NULL for the same. The
 * shape is copied. PERSEUS_INVALID_ARGUMENT for a name that is there already, and for a tensor that
 * perseus_submit would refuse. */
PERSEUS_API perseus_status_t perseus_gradients_add(perseus_gradients_t* gradients, const char* name,
                                                   const perseus_tensor_t* tensor,
                                                   int32_t* gradient);
/* Backward has computed it, or, on a GPU, will have when the work of `stream` of now is done (see
 * perseus_submission_t; not used for tensors on the CPU). Returns at once.
 * PERSEUS_INVALID_ARGUMENT for one that has been submitted in this batch already, or is still under
 * way; a batch ends when all have been submitted. A call that fails counts as not made, and its
 * batch_done does not come before it is made anew; until then waits for the gradient give its
 * status, once what was under way before it is done. Where the engine refuses the tensor or an
 * option, the other ranks' calls fail with it; of one that is out of turn they are not told. May be
 * called by callbacks while another thread submits other gradients. */
PERSEUS_API perseus_status_t perseus_gradients_submit(perseus_gradients_t* gradients,
                                                      int32_t gradient, void* stream);
/* Waits until what was submitted last of a gradient is done, and until the ranks have compared what
 * they have registered, which they do once, as the first is submitted. Returns the gradient's
 * status, or that of a submission that was refused since; PERSEUS_OK if nothing was submitted. For
 * the time-out see perseus_wait. May return before gradient_done has. */
PERSEUS_API perseus_status_t perseus_gradients_wait(perseus_gradients_t* gradients,
                                                    int32_t gradient, int64_t time_out_ms);
/* The same of all; the status is that of the first that failed. */
PERSEUS_API perseus_status_t perseus_gradients_wait_all(perseus_gradients_t* gradients,
                                                        int64_t time_out_ms);
/* Has a CUDA stream wait in place of this thread; see perseus_wait_on_stream. */
PERSEUS_API perseus_status_t perseus_gradients_wait_on_stream(perseus_gradients_t* gradients,
                                                              int32_t gradient, void* stream,
                                                              int64_t time_out_ms);
/* Waits for those that are under way, and for callbacks to return; not to be called from one. Where
 * this rank gives up in the middle of a batch, other ranks may never submit theirs: call
 * perseus_shutdown_because first, which ends them. NULL is allowed. */
PERSEUS_API void perseus_gradients_destroy(perseus_gradients_t* gradients);

/* ---- Codecs -------------------------------------------------------------------------------- */

/* A way to make float32 tensors smaller on the wire. All ranks submit an operation with the codec
 * of the same name, which does the same on all. Functions run on a thread of the library and must
 * not block. */
typedef struct {
  size_t struct_size;
  const char* name;
  /* Bytes that `elements` floats take once encoded; a pure function. */
  size_t (*encoded_size)(void* user, size_t elements);
  void (*encode)(void* user, const float* elements, size_t count, void* encoded);
  void (*decode)(void* user, const void* encoded, float* elements, size_t count);
  /* Nonzero: what encoding loses is kept for each tensor and added to its next gradient. */
  int32_t error_feedback;
  void* user;
} perseus_codec_t;

/* Gives the codec its id, for submissions, which follows from its name; the structure is copied,
 * and `user` and the functions must live until the process ends. PERSEUS_INVALID_ARGUMENT for a
 * name that is taken. */
PERSEUS_API perseus_status_t perseus_register_codec(const perseus_codec_t* codec, int32_t* id);
/* The id of a codec by its name; built in are "none", "fp16" and "bf16". PERSEUS_INVALID_ARGUMENT
 * if there is none. */
PERSEUS_API perseus_status_t perseus_find_codec(const char* name, int32_t* id);

/* ---- Observation --------------------------------------------------------------------------- */

/* Chrome-trace timeline, written by each rank whose turn it is (rank 0). mark_cycles marks each
 * agreement. PERSEUS_NOT_INITIALIZED before init. */
PERSEUS_API perseus_status_t perseus_start_timeline(const char* path, int32_t mark_cycles);
/* Ends the file; harmless if none is written. PERSEUS_NOT_INITIALIZED before init. */
PERSEUS_API perseus_status_t perseus_stop_timeline(void);

/* Calls `visit` for every counter of this process, in a fixed order. */
PERSEUS_API perseus_status_t perseus_counters(void (*visit)(void* user, const char* name,
                                                            uint64_t value),
                                              void* user);

/* One setting: a row of docs/settings.md. */
typedef struct {
  size_t struct_size;
  const char* name;
  const char* type; /* "int", "float", "bool", "string", "choice" */
  const char* default_value;
  const char* range; /* "1 .. 64", or the choices, or "" */
  const char* since;
  const char*
      aliases; /* names of Horovod's or Ali-Perseus's that set it too, separated by commas */
  const char* help;
  const char* value; /* as init found it in this process; the tuner may have moved on */
} perseus_setting_t;

/* Calls `visit` for every setting, in the order of docs/settings.md; strings live during the call.
 */
PERSEUS_API perseus_status_t perseus_settings(void (*visit)(void* user,
                                                            const perseus_setting_t* setting),
                                              void* user);

/* ---- Rendezvous (for launchers) ------------------------------------------------------------ */

typedef struct perseus_rendezvous perseus_rendezvous_t;
/* Serves the exchange of addresses of a job of `size` ranks on `address` ("" for every interface)
 * and *port (0: any free one, written back). `secret` is the job's, in hexadecimal. With
 * PERSEUS_SURVIVORS=1, so many ranks as `least` (1 to `size`) go on without the others.
 * `hosts`: the host of each rank, to be named in errors; NULL: not known. */
PERSEUS_API perseus_status_t perseus_rendezvous_start(const char* address, int32_t* port,
                                                      int32_t size, int32_t least,
                                                      const char* secret, const char* const* hosts,
                                                      perseus_rendezvous_t** rendezvous);
/* The process of this rank has ended: survivors meet without it, and others do not wait in vain.
 * `how`, which may be NULL, goes into their error: "exited with code 1". */
PERSEUS_API perseus_status_t perseus_rendezvous_note_ended(perseus_rendezvous_t* rendezvous,
                                                           int32_t rank, const char* how);
/* Ranks without which survivors have gone on, since they did not come in time. Writes up to
 * `capacity` of them and returns how many there are; -1 without a rendezvous. */
PERSEUS_API int32_t perseus_rendezvous_left_out(perseus_rendezvous_t* rendezvous, int32_t* ranks,
                                                int32_t capacity);
/* Ends serving: ranks that have not met by then fail. NULL is allowed. */
PERSEUS_API void perseus_rendezvous_stop(perseus_rendezvous_t* rendezvous);

/* Folders, separated by colons, in which libcuda, libcudart and libnccl are looked for where
 * neither the process nor the system's loader has them. Before the first tensor on a GPU. */
PERSEUS_API void perseus_add_library_folders(const char* folders);
/* What could be found here: one line each for MPI, CUDA, NCCL, CPU features. */
PERSEUS_API perseus_status_t perseus_check_build(void (*visit)(void* user, const char* what,
                                                               const char* found),
                                                 void* user);

/* What there is here for tensors on GPUs. Versions are as the libraries number them; 0: there is
 * none that can be used. */
typedef struct {
  size_t struct_size;
  int32_t cuda_driver; /* 13020 is for CUDA 13.2 */
  int32_t cuda_runtime;
  int32_t nccl;        /* 22105 is 2.21.5; 0 also without a driver */
  int32_t has_kernels; /* 1 if they were built into this library */
} perseus_gpu_support_t;

/* Opens CUDA's libraries and NCCL, if that has not been done; CUDA itself is not started. */
PERSEUS_API perseus_status_t perseus_gpu_support(perseus_gpu_support_t* support);

#ifdef __cplusplus
}
#endif

#endif /* PERSEUS_PERSEUS_H_ */
