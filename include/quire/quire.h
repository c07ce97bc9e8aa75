/* SPDX-License-Identifier: Apache-2.0 */
/* C interface to Quire: check, slot ledger, plan, explain, append, attend, merge, compare, cases and capture files, without any
 * C++ type. Page pool, bound calls, diagnose, faults, verify, bench and reports are in C++ only.
 *
 * Conventions, true of every function here:
 *  - A function returns a quire_code unless stated otherwise; QUIRE_OK is 0. Codes and enumerators never change their numbers.
 *  - After a failure, quire_last_message() tells what, where, expected and got. No function throws, prints or aborts.
 *  - Pointers must not be NULL unless the parameter says "nullable"; NULL elsewhere is QUIRE_INVALID_ARGUMENT, not a crash.
 *  - The library keeps no pointer of the caller after a call returns. Handles (quire_plan, ...) belong to the caller, who frees
 *    each with its own _free function; _free(NULL) does nothing. An out-handle is set to NULL when the call fails.
 *  - Structs with a `struct_size` must be started with their initialiser (QUIRE_BATCH_INIT, ...). All other members may stay
 *    zero, which means "absent" or "default". A struct from a newer header is accepted if all members that this library does not
 *    know are zero, and refused with QUIRE_UNSUPPORTED otherwise: no option is dropped in silence.
 *  - Strings are UTF-8 and NUL-terminated. Texts are copied to the caller as snprintf does it: at most `capacity` bytes with
 *    the NUL, and *length is the whole length without it, so that length >= capacity tells of a cut text.
 *  - Different threads may call at the same time; one quire_ledger must not be used by two threads at once.
 *
 * Shapes, equations and promises: batch.hpp and docs/design.md. Rules by id: contract.md.
 * A whole program: tests/capi/program.c.
 */
#ifndef QUIRE_QUIRE_H
#define QUIRE_QUIRE_H

/* NOLINTBEGIN(modernize-use-using,readability-identifier-naming): this is C. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------- status ---- */

typedef int32_t quire_code;
enum {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1,   /* NULL, or an argument outside its documented range that no contract rule covers */
  QUIRE_CONTRACT_VIOLATION = 2, /* a rule of contract.md is broken; quire_last_rule() names it */
  QUIRE_UNSUPPORTED = 3,        /* valid, but this build, device or forced kernel refuses it; the message says why */
  QUIRE_PARSE_ERROR = 4,        /* malformed text or file */
  QUIRE_IO_ERROR = 5,           /* the operating system refused to open, read or write */
  QUIRE_OUT_OF_PAGES = 6,       /* the page pool cannot serve the request now */
  QUIRE_OUT_OF_MEMORY = 7,      /* the host's or a device's memory is used up */
  QUIRE_DEVICE_ERROR = 8,       /* a GPU or its driver reported a failure */
  QUIRE_INTERNAL_ERROR = 99     /* Quire broke one of its own promises; please report it */
};

/* Version of the library: "0.1.0". Static storage. */
const char* quire_version(void);
/* Lower-case name of a code, e.g. "contract_violation"; "unknown" for a number that is none. Static storage. */
const char* quire_code_name(quire_code code);
/* Text of this thread's last failed call, "" if its last call succeeded. Valid until the thread's next call into Quire.
 * quire_version, quire_code_name, quire_last_message and quire_last_rule leave it as it is. */
const char* quire_last_message(void);
/* Contract rule id of this thread's last failed call ("Q-T03"), or "". Valid as long as quire_last_message(). */
const char* quire_last_rule(void);

/* ----------------------------------------------------------------------------------------------------------- batch ---- */

typedef int32_t quire_dtype;
enum {
  QUIRE_DTYPE_NONE = 0, /* absent tensor */
  QUIRE_F32 = 1,
  QUIRE_F16 = 2,
  QUIRE_BF16 = 3,
  QUIRE_FP8_E4M3FN = 4,
  QUIRE_FP8_E4M3FNUZ = 5,
  QUIRE_FP8_E5M2 = 6,
  QUIRE_FP8_E5M2FNUZ = 7,
  QUIRE_I32 = 8,
  QUIRE_I64 = 9,
  QUIRE_U8 = 10,       /* flags, 0 or 1 */
  QUIRE_I8 = 11,       /* codes of a cache with scales */
  QUIRE_NVFP4 = 12,    /* two e2m1 codes of a cache in a byte, with fp8_e4m3fn scales of 16 dims */
  QUIRE_MXFP4 = 13,    /* likewise, with fp8_e8m0 scales of 32 dims */
  QUIRE_FP8_E8M0 = 14, /* scales 2^(code - 127) */
  /* Rows of 656 bytes, FlashMLA's fp8 cache of MLA: k and v of quire_cache are one tensor [num_pages, page_size, 1, 656]. */
  QUIRE_FP8_DS_MLA = 15
};

typedef int32_t quire_memory;
enum { QUIRE_MEMORY_CPU = 0, QUIRE_MEMORY_CUDA = 1, QUIRE_MEMORY_HIP = 2 };

typedef int32_t quire_layout;
enum {
  QUIRE_NHD = 0,   /* k [num_pages, page_size, num_kv_heads, head_dim], v [num_pages, page_size, num_kv_heads, v_head_dim] */
  QUIRE_HND = 1,   /* k [num_pages, num_kv_heads, page_size, head_dim], v [num_pages, num_kv_heads, page_size, v_head_dim] */
  QUIRE_PACKED = 2 /* k [num_pages, num_kv_heads, head_dim / x, page_size, x], v [num_pages, num_kv_heads, v_head_dim, page_size],
                      x = 16 / itemsize */
};

#define QUIRE_MAX_RANK 5

/* A view; owns nothing. All zero = absent. Element (i, j, ...) is i * stride[0] + j * stride[1] + ... elements from data. */
typedef struct quire_tensor {
  void* data; /* nullable only if the tensor has no elements */
  quire_dtype dtype;
  int32_t rank; /* 0 (a scalar) to QUIRE_MAX_RANK */
  int64_t shape[QUIRE_MAX_RANK];
  int64_t stride[QUIRE_MAX_RANK]; /* in elements, not bytes */
  quire_memory memory;
  int32_t reserved; /* zero */
} quire_tensor;

/* Makes a row-major contiguous view over `data`. shape: `rank` sizes, nullable if rank is 0. A rank outside [0, QUIRE_MAX_RANK]
 * is kept, and a NULL shape gives rank -1: the call that gets the tensor then refuses the tensor. Never fails. */
quire_tensor quire_contiguous(void* data, quire_dtype dtype, int32_t rank, const int64_t* shape);

/* Treatment of padding rows: query rows from query_start_loc's last value on, which belong to no request. Never read. */
typedef int32_t quire_padding;
enum {
  QUIRE_PADDING_REFUSED = 0, /* a batch has no padding rows: query_start_loc ends at num_tokens */
  QUIRE_PADDING_LEFT = 1,    /* output and lse of padding rows stay as they are */
  QUIRE_PADDING_ZERO = 2     /* output of padding rows becomes 0, lse -inf */
};

/* One step's batch (Batch in batch.hpp). query_len(r) = query_start_loc[r+1] - query_start_loc[r],
 * context_len(r) = seq_lens[r] - query_len(r). Index tensors are i32 or i64. */
typedef struct quire_batch {
  size_t struct_size;  /* QUIRE_BATCH_INIT */
  quire_tensor query;  /* [num_tokens, num_q_heads, head_dim] f32 | f16 | bf16 | fp8_e4m3fn */
  quire_tensor output; /* [num_tokens, num_q_heads, v_head_dim]; dtype of query or f32, or fp8_e4m3fn with output_scale; under
                          an fp8_e4m3fn query also f32 | f16 | bf16; written exactly once per row */
  quire_tensor query_start_loc; /* [num_reqs + 1]; first 0, last num_tokens (with padding: at most), never decreasing */
  quire_tensor seq_lens;        /* [num_reqs]; keys of each request */
  quire_tensor block_table;     /* [num_reqs, max_pages_per_req]; read where some row sees a cached key of the page */
  quire_tensor cached_lens;     /* optional [num_reqs]; context_len <= cached_len <= seq_len; absent = seq_lens */
  quire_tensor key;             /* optional [num_tokens, num_kv_heads, head_dim], dtype of query, unscaled; read for positions */
  quire_tensor value;           /*   [cached_len, seq_len); needed if any cached_len < seq_len; [.., v_head_dim] */
  quire_tensor slot_mapping;    /* optional [num_tokens]; negative = skip */
  quire_tensor lse;             /* optional [num_tokens, num_q_heads] f32, written; natural log */
  quire_tensor request_ids;     /* optional [num_reqs]; ids that the ledger knows; absent = 0 .. num_reqs-1 */
  quire_padding padding;        /* whether there may be padding rows, and what becomes of them */
  int32_t reserved;             /* zero */
  quire_tensor q_scale;         /* optional f32 scalar, [1] or [num_kv_heads]; for an fp8_e4m3fn query: real = stored * scale */
  quire_tensor output_scale;    /* f32 scalar or [1]; for an fp8_e4m3fn output: stored = round to nearest even of real / scale,
                                   saturated at 448, NaN stays NaN */
  quire_tensor causal;          /* optional [num_reqs] u8, 0 or 1; 0: rows see later keys, too; absent = as options say */
  quire_tensor q_begin;         /* optional [num_reqs]; position of a request's first row; absent = key_begin + context_len */
  quire_tensor key_begin;       /* optional [num_reqs]; position of a request's first key; absent = 0 */
  quire_tensor spans;           /* optional [num_reqs, max_spans, 2]; positions [begin, end) whose rows see each other's keys */
  quire_tensor prefix_lens;     /* optional [num_reqs]; keys at positions below it are hidden by no window and no chunk */
  quire_tensor tree_mask;       /* optional [num_tokens, 1 to 32] u8; bit b: the row sees key seq_len - tree_len + b */
  quire_tensor tree_lens;       /* optional [num_reqs]; last keys that tree_mask speaks of; comes with tree_mask */
} quire_batch;

/* One layer's paged cache (KVCache in cache.hpp). */
typedef struct quire_cache {
  size_t struct_size; /* QUIRE_CACHE_INIT */
  quire_tensor k;     /* f32, f16, bf16, an fp8 type, i8, nvfp4, mxfp4 or fp8_ds_mla; shape by layout, any strides */
  quire_tensor v;     /* as k, of its own dtype; sizes of k, except the head_dim: v_head_dim. May be dims of k's bytes (MLA) */
  quire_layout layout;
  int32_t reserved; /* zero */
  /* Optional f32 scalar, [1], [num_kv_heads], or [num_pages, page_size, num_kv_heads] of an 8-bit cache, which quire_append
   * writes; real value = stored value * scale; absent = 1. An i8 cache has both scales. */
  quire_tensor k_scale;
  quire_tensor v_scale; /* as k_scale, for v */
  /* Block scales, required for nvfp4 (fp8_e4m3fn, one for 16 dims) and mxfp4 (fp8_e8m0, one for 32) and refused beside other
   * types: [num_pages, page_size, num_kv_heads, head_dim / block]. quire_append writes them;
   * real value = code * block scale * k_scale. */
  quire_tensor k_block_scale;
  quire_tensor v_block_scale; /* as k_block_scale, for v */
} quire_cache;

/* Score options (Options in batch.hpp). A value counts only if its has_ flag is 1; a flag other than 0 or 1 is refused. */
typedef struct quire_options {
  size_t struct_size; /* QUIRE_OPTIONS_INIT */
  int32_t has_softmax_scale;
  int32_t has_sliding_window;
  int32_t has_logits_soft_cap;
  float softmax_scale;       /* absent = 1 / sqrt(head_dim) */
  int64_t sliding_window;    /* keys visible to a query, its own included; >= 1; absent = all */
  float logits_soft_cap;     /* > 0 */
  int32_t reserved;          /* zero */
  quire_tensor alibi_slopes; /* optional [num_q_heads] f32, any sign */
  quire_tensor sinks;        /* optional [num_q_heads] f32 */
  int32_t non_causal;        /* 1: rows of all requests see later keys, too; 0 where batch.causal is given */
  int32_t has_window_right;
  int64_t window_right; /* later keys visible to a query of a request that is not causal; >= 0; absent = all */
  int32_t has_attention_chunk;
  int32_t has_prefix_len;
  int64_t attention_chunk;     /* tokens of a chunk; rows see keys of their own chunk alone; >= 1 */
  int64_t prefix_len;          /* prefix_lens of all requests; >= 0 */
  int32_t spans_beyond_window; /* 1: neither window nor chunk hides keys of a row's own span */
  int32_t reserved2;           /* zero */
} quire_options;

#ifdef __cplusplus
#define QUIRE_INIT(type)                   \
  [] {                                     \
    type quire_init{};                     \
    quire_init.struct_size = sizeof(type); \
    return quire_init;                     \
  }()
#else
#define QUIRE_INIT(type) {.struct_size = sizeof(type)}
#endif
#define QUIRE_BATCH_INIT QUIRE_INIT(quire_batch)
#define QUIRE_CACHE_INIT QUIRE_INIT(quire_cache)
#define QUIRE_OPTIONS_INIT QUIRE_INIT(quire_options)

/* -------------------------------------------------------------------------------------------------------- contract ---- */

/* Record of the writer and the step of each slot (SlotLedger in contract.hpp). */
typedef struct quire_ledger quire_ledger;

/* Makes a ledger for num_pages * page_size slots, all never written. num_pages >= 0, page_size >= 1. *out: new handle. */
quire_code quire_ledger_create(int64_t num_pages, int64_t page_size, quire_ledger** out);
void quire_ledger_free(quire_ledger* ledger); /* nullable */
/* Starts step `step`, which later writes carry. Steps only grow. */
quire_code quire_ledger_begin_step(quire_ledger* ledger, int64_t step);
/* Records that slot `slot` was written for token `position` of `request` in this step, by code other than quire_append. */
quire_code quire_ledger_record(quire_ledger* ledger, int64_t slot, int64_t request, int64_t position);
/* Lets `request` read what others wrote in `page`, from now on (prefix sharing). */
quire_code quire_ledger_share(quire_ledger* ledger, int64_t page, int64_t request);
/* Records that `page` went back to the pool: its slots are stale for every request until written again. */
quire_code quire_ledger_recycle(quire_ledger* ledger, int64_t page);

typedef int32_t quire_depth;
enum {
  QUIRE_DEPTH_METADATA = 0, /* dtypes, ranks, shapes, strides, option ranges; reads no tensor data */
  QUIRE_DEPTH_TABLES = 1,   /* also index tensors and scales */
  QUIRE_DEPTH_CONTENTS = 2  /* also every visible element, and that slots are distinct */
};

/* Findings of quire_check: all broken rules at all places. */
typedef struct quire_findings quire_findings;

/* A broken rule at one place. The pointers are valid as long as the quire_findings that they come from. */
typedef struct quire_finding {
  const char* rule;     /* "Q-T03" */
  const char* tensor;   /* "block_table" */
  const char* value;    /* value that was found: "page 913" */
  const char* expected; /* "in [0, 512)" */
  const char* message;  /* the full text */
  const int64_t* index; /* [num_indices], place in the tensor */
  int64_t num_indices;  /* 0 if the tensor as a whole is meant */
} quire_finding;

/* Applies every rule up to `depth`. Writes nothing, reads no element that attention would not read.
 * options: nullable = none set. ledger: nullable. findings: nullable; otherwise receives a handle whenever the rules were
 * applied, also if no rule is broken.
 * Returns QUIRE_OK if no rule is broken, QUIRE_CONTRACT_VIOLATION with the first finding's text if some are, and
 * QUIRE_INVALID_ARGUMENT if a struct cannot be read at all (then *findings is NULL). */
quire_code quire_check(const quire_batch* batch, const quire_cache* cache, const quire_options* options, quire_depth depth,
                       const quire_ledger* ledger, quire_findings** findings);
/* Number of listed findings, at most 16 per rule; -1 if findings is NULL. */
int64_t quire_findings_count(const quire_findings* findings);
/* Number of all findings, listed or not; -1 if findings is NULL. */
int64_t quire_findings_total(const quire_findings* findings);
/* Finding `i`, 0 <= i < quire_findings_count(findings), in rule order. */
quire_code quire_findings_get(const quire_findings* findings, int64_t i, quire_finding* out);
void quire_findings_free(quire_findings* findings); /* nullable */

/* ------------------------------------------------------------------------------------------------------------ plan ---- */

/* All decisions about one quire_attend. Immutable: plan once per step, run for every layer, from any thread. */
typedef struct quire_plan quire_plan;

typedef struct quire_plan_settings {
  size_t struct_size;      /* QUIRE_PLAN_SETTINGS_INIT */
  const char* kernel;      /* nullable = choose; otherwise this row of the kernel table, or QUIRE_UNSUPPORTED with its reasons */
  int32_t batch_invariant; /* 1: a request's bits depend neither on the rest of the batch nor on its chunking */
  int32_t num_threads;     /* 0 = all the device has; at most 4096; balances work, never changes bits */
  int64_t max_query_len;   /* upper bound of query_len if lengths are in device memory; 0 = the most that the shapes allow */
  int64_t max_seq_len;     /* upper bound of seq_lens, as max_query_len */
  int32_t exact_weights;   /* 1: softmax weights keep f32's precision in every row; slower on some GPUs */
  int32_t reserved;        /* 0 */
} quire_plan_settings;
#define QUIRE_PLAN_SETTINGS_INIT QUIRE_INIT(quire_plan_settings)

/* Checks metadata and tables, then plans for this batch on this machine's CPU, or on the GPU that holds the batch (then lengths
 * and tables are not read: the plan is made from upper bounds and its text says which). options, settings: nullable. */
quire_code quire_plan_create(const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                             const quire_plan_settings* settings, quire_plan** out);
/* Plans the problem of a problem line (problem_line.md). device: nullable = this machine, or a pretend one such as
 * "avx512" or "gfx942". settings: nullable. */
quire_code quire_plan_for_problem_line(const char* line, const char* device, const quire_plan_settings* settings,
                                       quire_plan** out);
/* Copies the plan as one line of text. buffer: nullable if capacity is 0. length: nullable. */
quire_code quire_plan_text(const quire_plan* plan, char* buffer, size_t capacity, size_t* length);
/* Bytes of workspace that quire_attend needs for this plan, >= 0; -1 if plan is NULL. */
int64_t quire_plan_workspace_bytes(const quire_plan* plan);
void quire_plan_free(quire_plan* plan); /* nullable */

/* Copies the kernel chosen for a problem line and every refusal with its reason, several lines. device, settings, buffer and
 * length as for quire_plan_for_problem_line and quire_plan_text. A problem that no kernel takes is an answer, not a failure. */
quire_code quire_explain(const char* line, const char* device, const quire_plan_settings* settings, char* buffer, size_t capacity,
                         size_t* length);

/* ------------------------------------------------------------------------------------------------------- attention ---- */

/* The caller's own threads. run() calls task(task_context, i, thread) once for every i in [0, num_tasks), with
 * 0 <= thread < num_threads and no two concurrent calls sharing a thread number, and returns after the last one. All writes of
 * the tasks must then be visible to the caller of run(). Results never depend on the thread of a task. run() must not throw. A
 * call is QUIRE_INVALID_ARGUMENT if its executor skips or repeats a task, or gives a thread number that is invalid or in use. */
typedef struct quire_executor {
  size_t struct_size;  /* QUIRE_EXECUTOR_INIT */
  void* context;       /* nullable; handed to run */
  int32_t num_threads; /* 1 to 4096 */
  int32_t reserved;    /* zero */
  void (*run)(void* context, int64_t num_tasks, void (*task)(void* task_context, int64_t index, int32_t thread),
              void* task_context);
} quire_executor;
#define QUIRE_EXECUTOR_INIT QUIRE_INIT(quire_executor)

typedef struct quire_append_options {
  size_t struct_size;             /* QUIRE_APPEND_OPTIONS_INIT */
  const quire_executor* executor; /* nullable = Quire's own thread pool */
  quire_ledger* ledger;           /* nullable; told of every written slot */
  const int64_t* requests;        /* [num_tags]; nullable without a ledger; stable request id of each token */
  const int64_t* positions;       /* [num_tags]; nullable without a ledger; the token's position in its request */
  int64_t num_tags;               /* with a ledger: slot_mapping's length; without one: 0 */
  void* stream;                   /* cudaStream_t or hipStream_t for a cache on a GPU; nullable = the default stream */
} quire_append_options;
#define QUIRE_APPEND_OPTIONS_INIT QUIRE_INIT(quire_append_options)

/* Writes row t of key and value into slot slot_mapping[t] = page * page_size + offset, for every slot >= 0:
 *   stored = convert(row / scale)       round to nearest even; fp8 saturates, NaN stays NaN
 * key [num_tokens, num_kv_heads, head_dim], value [num_tokens, num_kv_heads, v_head_dim] f32 | f16 | bf16; slot_mapping [n]
 * i32 | i64, n <= num_tokens. cache->k and cache->v share no memory.
 * options: nullable. Writes nothing if a rule is broken. On a GPU: enqueues and returns; slots outside the cache are skipped. */
quire_code quire_append(const quire_cache* cache, const quire_tensor* key, const quire_tensor* value,
                        const quire_tensor* slot_mapping, const quire_append_options* options);

typedef struct quire_attend_options {
  size_t struct_size;             /* QUIRE_ATTEND_OPTIONS_INIT */
  const quire_executor* executor; /* nullable = Quire's own thread pool */
  int64_t* rows_written;  /* nullable; receives the number of (token, query head) rows written (GPU: by the status call) */
  void* stream;           /* cudaStream_t or hipStream_t for a plan of a GPU; nullable = the default stream */
  int32_t nan_if_refused; /* 1: on a GPU, output and lse become NaN if the device refuses lengths or tables */
  int32_t prepared;       /* 1: quire_prepare came before, and this layer only attends */
} quire_attend_options;
#define QUIRE_ATTEND_OPTIONS_INIT QUIRE_INIT(quire_attend_options)

/* Softmax attention for every request of the batch:
 *   s(k) = softmax_scale * dot(q, K_k);  cap * tanh(s / cap) if capped;  + slope_h * (k - q_pos) with ALiBi
 *   out  = sum_k exp(s(k) - m) V_k / (sum_k exp(s(k) - m) + exp(sink_h - m))       lse = m + log(that denominator)
 * plan: made from this batch's lengths and shapes. workspace: quire_plan_workspace_bytes(plan) bytes, 64-byte aligned,
 * nullable if that is 0, sharing no memory with a tensor (Q-M37). options, attend_options: nullable. Writes batch->output and
 * batch->lse, padding rows as batch->padding says; metadata and tables are checked before any write. */
quire_code quire_attend(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                        void* workspace, size_t workspace_bytes, const quire_attend_options* attend_options);

/* Does once the work that all layers of a step share: checks lengths and tables and makes work lists in `workspace`. Layers
 * follow with quire_attend and attend_options->prepared = 1. They use this plan, workspace, sliding_window, lengths and
 * block_table (same addresses; values unchanged until the last layer is done). Query, output, lse, cache, key, value, scales,
 * sinks and slopes may differ, with the same strides and alignment. Any number of layers may follow. Arguments and codes are
 * those of quire_attend. Layers without a preparation write no row, and quire_attend_status reports that. On a CPU,
 * quire_prepare only checks, and layers do all of their work. */
quire_code quire_prepare(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache, const quire_options* options,
                         void* workspace, size_t workspace_bytes, const quire_attend_options* attend_options);

/* Returns the outcome of the last quire_attend with these arguments on a GPU, where that call enqueues and returns, and of all
 * earlier calls with this workspace whose outcome was not asked for, such as replays of a graph. Waits for the stream, then
 * QUIRE_OK if every row was written, QUIRE_CONTRACT_VIOLATION if lengths or tables break a rule (no row was written),
 * QUIRE_INVALID_ARGUMENT if lengths exceed the plan's bounds (no row was written). QUIRE_OK for a CPU's plan. */
quire_code quire_attend_status(const quire_plan* plan, const quire_batch* batch, const quire_cache* cache,
                               const quire_options* options, void* workspace, size_t workspace_bytes,
                               const quire_attend_options* attend_options);

/* Combines two partial results over disjoint key sets, exactly on empty sides (lse = -inf):
 *   lse = log(exp(lse_a) + exp(lse_b))      out = out_a exp(lse_a - lse) + out_b exp(lse_b - lse)
 * out_* [num_tokens, num_q_heads, v_head_dim] f32 | f16 | bf16; lse_* [num_tokens, num_q_heads] f32. out may be out_a or out_b.
 * lse: nullable = not wanted. */
quire_code quire_merge(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b, const quire_tensor* lse_b,
                       const quire_tensor* out, const quire_tensor* lse);
/* quire_merge for tensors on a GPU, enqueued on `stream` (cudaStream_t or hipStream_t; nullable = the default stream). */
quire_code quire_merge_on_stream(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b,
                                 const quire_tensor* lse_b, const quire_tensor* out, const quire_tensor* lse, void* stream);

/* quire_merge_on_stream with an fp8_e4m3fn `out`: stored = round to nearest even of the merged value / output_scale, saturated
 * at 448. output_scale: f32 scalar or [1]; NULL = out is f32, f16 or bf16. */
quire_code quire_merge_quantised(const quire_tensor* out_a, const quire_tensor* lse_a, const quire_tensor* out_b,
                                 const quire_tensor* lse_b, const quire_tensor* out, const quire_tensor* lse,
                                 const quire_tensor* output_scale, void* stream);

/* Combines a stack of partial results over disjoint key sets in one pass, in the order of the first axis: outs [num_parts,
 * num_tokens, num_q_heads, v_head_dim], lses [num_parts, num_tokens, num_q_heads] f32 natural log. out, lse (nullable) and
 * output_scale (nullable) as for quire_merge_quantised, in memory of their own. Equal parts in equal order give equal bits. */
quire_code quire_merge_many(const quire_tensor* outs, const quire_tensor* lses, const quire_tensor* out, const quire_tensor* lse,
                            const quire_tensor* output_scale, void* stream);

/* -------------------------------------------------------------------------------------------------------- diagnose ---- */

typedef struct quire_comparison {
  int64_t num_elements;
  int64_t num_mismatches; /* elements over their derived tolerance, and NaN or infinity in the wrong place */
  double worst_ratio;     /* largest |error| / tolerance over finite elements */
} quire_comparison;

/* Judges batch->output (and batch->lse if present) against the fp64 reference of this batch, element by element, with the
 * tolerances of numerics.md. options: nullable. Slow on purpose: use it on samples.
 * *out: the counts; num_mismatches == 0 means right. buffer (nullable if capacity is 0), length (nullable): the verdict in
 * words. A wrong output is an answer: the call returns QUIRE_OK. */
quire_code quire_compare(const quire_batch* batch, const quire_cache* cache, const quire_options* options, quire_comparison* out,
                         char* buffer, size_t capacity, size_t* length);

/* ----------------------------------------------------------------------------------------------------------- cases ---- */

/* A batch that owns its memory: generated from a problem line or read from a capture file (capture.md). */
typedef struct quire_case quire_case;

/* Fills the problem of a problem line with data: N(0,1), deterministic in its seed, NaN wherever nothing may be read. */
quire_code quire_case_from_problem_line(const char* line, quire_case** out);
/* Reads a capture file; hostile and truncated files are QUIRE_PARSE_ERROR with a text that says where. */
quire_code quire_case_read(const char* path, quire_case** out);
/* Writes a capture file (temporary file, then rename). */
quire_code quire_case_write(const quire_case* handle, const char* path);
/* Fills views into the case, valid until the case is freed; write output and lse through the views. Each argument is nullable;
 * each given one must have been started with its initialiser. */
quire_code quire_case_views(const quire_case* handle, quire_batch* batch, quire_cache* cache, quire_options* options);
/* Fills views of another kernel's output and lse, if a capture file holds them; absent tensors otherwise. Each nullable. */
quire_code quire_case_observed(const quire_case* handle, quire_tensor* output, quire_tensor* lse);
void quire_case_free(quire_case* handle); /* nullable */

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#endif
