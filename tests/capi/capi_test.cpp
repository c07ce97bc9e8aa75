// SPDX-License-Identifier: Apache-2.0
// The C ABI's own promises: codes, texts per thread, NULL is an error, no option is dropped, structs may grow.
#include "quire/quire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "support/golden.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLine = "q=f32 kv=f32 heads=4:2 d=16 page=4 layout=nhd reqs=1x5,2x1@7 lse=1 seed=3";

/// A generated case and its views.
struct Generated {
  quire_case* handle = nullptr;
  quire_batch batch = QUIRE_BATCH_INIT;
  quire_cache cache = QUIRE_CACHE_INIT;
  quire_options options = QUIRE_OPTIONS_INIT;

  explicit Generated(const char* line = kLine) {
    EXPECT_EQ(quire_case_from_problem_line(line, &handle), QUIRE_OK) << quire_last_message();
    EXPECT_EQ(quire_case_views(handle, &batch, &cache, &options), QUIRE_OK) << quire_last_message();
  }
  Generated(const Generated&) = delete;
  Generated& operator=(const Generated&) = delete;
  ~Generated() { quire_case_free(handle); }
};

struct Workspace {
  explicit Workspace(const quire_plan* plan)
      : bytes((static_cast<std::size_t>(quire_plan_workspace_bytes(plan)) + 63) / 64 * 64),
        data(std::aligned_alloc(64, bytes > 0 ? bytes : 64)) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data); }
  std::size_t bytes;
  void* data;
};

quire_code attend(Generated& g, const quire_plan_settings* settings = nullptr, const quire_attend_options* how = nullptr) {
  quire_plan* plan = nullptr;
  const quire_code planned = quire_plan_create(&g.batch, &g.cache, &g.options, settings, &plan);
  if (planned != QUIRE_OK) return planned;
  Workspace workspace(plan);
  const quire_code code = quire_attend(plan, &g.batch, &g.cache, &g.options, workspace.data, workspace.bytes, how);
  quire_plan_free(plan);
  return code;
}

std::string message() { return quire_last_message(); }

TEST(Status, CodesHaveNamesAndUnknownNumbersDoToo) {
  EXPECT_STREQ(quire_code_name(QUIRE_OK), "ok");
  EXPECT_STREQ(quire_code_name(QUIRE_CONTRACT_VIOLATION), "contract_violation");
  EXPECT_STREQ(quire_code_name(QUIRE_OUT_OF_MEMORY), "out_of_memory");
  EXPECT_STREQ(quire_code_name(12345), "unknown");
}

TEST(Status, SuccessClearsTheMessage) {
  EXPECT_EQ(quire_ledger_create(0, 1, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(message(), "");
  quire_ledger* ledger = nullptr;
  ASSERT_EQ(quire_ledger_create(1, 1, &ledger), QUIRE_OK);
  EXPECT_EQ(message(), "");
  quire_ledger_free(ledger);
}

TEST(Status, MessagesBelongToTheirThread) {
  EXPECT_EQ(quire_case_read(nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  const std::string mine = message();
  std::thread([] {
    EXPECT_EQ(message(), "");
    EXPECT_EQ(quire_ledger_recycle(nullptr, 0), QUIRE_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(message(), mine);
}

/// Names of the functions that quire.h declares and that none of `callers` calls.
std::vector<std::string> uncalled(const std::string& header, const std::string& callers) {
  std::vector<std::string> names;
  const std::regex declaration(R"(\n(?:const char\*|void|int64_t|quire_code|quire_tensor) (quire_\w+)\()");
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it) names.push_back((*it)[1]);
  EXPECT_GE(names.size(), 30u) << "the pattern no longer finds the declarations";
  std::erase_if(names, [&](const std::string& name) { return callers.find(name + "(") != std::string::npos; });
  return names;
}

TEST(Header, EveryFunctionIsCalledByATest) {
  const std::filesystem::path root = QUIRE_SOURCE_DIR;
  const std::string header = test::read_text(root / "include/quire/quire.h");
  const std::string callers = test::read_text(root / "tests/capi/capi_test.cpp") + test::read_text(root / "tests/capi/program.c");
  EXPECT_THAT(uncalled(header, callers), ::testing::IsEmpty());
  const std::string planted = "quire_forgotten";
  EXPECT_THAT(uncalled(header + "\nquire_code " + planted + "(void);\n", callers), ::testing::ElementsAre(planted));
}

TEST(Null, EveryRequiredPointerIsAnErrorNotACrash) {
  Generated g;
  quire_plan* plan = nullptr;
  quire_case* handle = nullptr;
  quire_ledger* ledger = nullptr;
  quire_finding finding;
  quire_comparison comparison;
  const quire_tensor t = g.batch.query;
  const std::vector<quire_code> codes = {
      quire_check(nullptr, &g.cache, nullptr, 0, nullptr, nullptr),
      quire_check(&g.batch, nullptr, nullptr, 0, nullptr, nullptr),
      quire_findings_get(nullptr, 0, &finding),
      quire_append(nullptr, &t, &t, &t, nullptr),
      quire_append(&g.cache, nullptr, &t, &t, nullptr),
      quire_append(&g.cache, &t, nullptr, &t, nullptr),
      quire_append(&g.cache, &t, &t, nullptr, nullptr),
      quire_plan_create(nullptr, &g.cache, nullptr, nullptr, &plan),
      quire_plan_create(&g.batch, nullptr, nullptr, nullptr, &plan),
      quire_plan_create(&g.batch, &g.cache, nullptr, nullptr, nullptr),
      quire_plan_for_problem_line(nullptr, nullptr, nullptr, &plan),
      quire_plan_for_problem_line(kLine, nullptr, nullptr, nullptr),
      quire_plan_text(nullptr, nullptr, 0, nullptr),
      quire_explain(nullptr, nullptr, nullptr, nullptr, 0, nullptr),
      quire_explain(kLine, nullptr, nullptr, nullptr, 8, nullptr),
      quire_attend(nullptr, &g.batch, &g.cache, nullptr, nullptr, 0, nullptr),
      quire_attend_status(nullptr, &g.batch, &g.cache, nullptr, nullptr, 0, nullptr),
      quire_prepare(nullptr, &g.batch, &g.cache, nullptr, nullptr, 0, nullptr),
      quire_merge_on_stream(nullptr, &t, &t, &t, &t, nullptr, nullptr),
      quire_merge(nullptr, &t, &t, &t, &t, nullptr),
      quire_merge(&t, nullptr, &t, &t, &t, nullptr),
      quire_merge(&t, &t, nullptr, &t, &t, nullptr),
      quire_merge(&t, &t, &t, nullptr, &t, nullptr),
      quire_merge(&t, &t, &t, &t, nullptr, nullptr),
      quire_compare(nullptr, &g.cache, nullptr, &comparison, nullptr, 0, nullptr),
      quire_compare(&g.batch, nullptr, nullptr, &comparison, nullptr, 0, nullptr),
      quire_compare(&g.batch, &g.cache, nullptr, nullptr, nullptr, 0, nullptr),
      quire_case_from_problem_line(nullptr, &handle),
      quire_case_from_problem_line(kLine, nullptr),
      quire_case_read(nullptr, &handle),
      quire_case_read("x", nullptr),
      quire_case_write(nullptr, "x"),
      quire_case_write(g.handle, nullptr),
      quire_case_views(nullptr, &g.batch, nullptr, nullptr),
      quire_case_observed(nullptr, nullptr, nullptr),
      quire_ledger_create(1, 1, nullptr),
      quire_ledger_begin_step(nullptr, 0),
      quire_ledger_record(nullptr, 0, 0, 0),
      quire_ledger_share(nullptr, 0, 0),
      quire_ledger_recycle(nullptr, 0),
  };
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i], QUIRE_INVALID_ARGUMENT) << "call " << i;
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(ledger, nullptr);
  EXPECT_EQ(quire_findings_count(nullptr), -1);
  EXPECT_EQ(quire_findings_total(nullptr), -1);
  EXPECT_EQ(quire_plan_workspace_bytes(nullptr), -1);
  quire_findings_free(nullptr);
  quire_plan_free(nullptr);
  quire_case_free(nullptr);
  quire_ledger_free(nullptr);
}

TEST(Structs, AForgottenInitialiserIsNamed) {
  Generated g;
  g.batch.struct_size = 0;
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &g.options, 0, nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("batch: struct_size 0"));
}

// A caller compiled against a later header: more members, which this library may ignore only while they are zero.
TEST(Structs, ALaterHeadersMembersAreAcceptedOnlyIfZero) {
  Generated g;
  struct Later {
    quire_options options = QUIRE_OPTIONS_INIT;
    std::int64_t tomorrow = 0;
  } later;
  later.options = g.options;
  later.options.struct_size = sizeof later;
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &later.options, QUIRE_DEPTH_TABLES, nullptr, nullptr), QUIRE_OK) << message();
  later.tomorrow = 1;
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &later.options, QUIRE_DEPTH_TABLES, nullptr, nullptr), QUIRE_UNSUPPORTED);
  EXPECT_THAT(message(), HasSubstr("options: byte"));
}

TEST(Structs, ImplausibleNumbersAreNamedBeforeTheyBecomeEnums) {
  const auto refused = [](auto mutate, const std::string& where) {
    Generated g;
    mutate(g);
    EXPECT_EQ(quire_check(&g.batch, &g.cache, &g.options, 0, nullptr, nullptr), QUIRE_INVALID_ARGUMENT) << where;
    EXPECT_THAT(message(), HasSubstr(where));
  };
  refused([](Generated& g) { g.batch.query.dtype = 77; }, "batch.query.dtype: 77");
  refused([](Generated& g) { g.batch.padding = 3; }, "batch.padding: 3");
  refused([](Generated& g) { g.batch.padding = -1; }, "batch.padding: -1");
  refused([](Generated& g) { g.batch.seq_lens.rank = 6; }, "batch.seq_lens.rank: 6");
  refused([](Generated& g) { g.cache.v.rank = -1; }, "cache.v.rank: -1");
  refused([](Generated& g) { g.cache.k.memory = 9; }, "cache.k.memory: 9");
  refused([](Generated& g) { g.cache.layout = 3; }, "cache.layout: 3");
  refused([](Generated& g) { g.options.has_sliding_window = 2; }, "options.has_sliding_window: 2");
  refused([](Generated& g) { g.batch.output.dtype = QUIRE_DTYPE_NONE; }, "batch.output: dtype is QUIRE_DTYPE_NONE");
  Generated g;
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &g.options, 3, nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("depth: 3"));
  g.options.reserved = 1;
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &g.options, 0, nullptr, nullptr), QUIRE_UNSUPPORTED);
  EXPECT_THAT(message(), HasSubstr("options.reserved: 1"));
}

TEST(Tensors, ContiguousStridesAndRefusedRanks) {
  const int64_t shape[3] = {2, 3, 4};
  const quire_tensor t = quire_contiguous(nullptr, QUIRE_F32, 3, shape);
  EXPECT_THAT(std::vector<int64_t>(t.stride, t.stride + 3), ::testing::ElementsAre(12, 4, 1));
  Generated g;
  g.batch.query = quire_contiguous(g.batch.query.data, QUIRE_F32, 3, nullptr);
  EXPECT_EQ(quire_check(&g.batch, &g.cache, &g.options, 0, nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("batch.query.rank: -1"));
}

TEST(Check, FindingsCarryRulePlaceAndText) {
  Generated g;
  quire_findings* findings = nullptr;
  ASSERT_EQ(quire_check(&g.batch, &g.cache, &g.options, QUIRE_DEPTH_CONTENTS, nullptr, &findings), QUIRE_OK) << message();
  EXPECT_EQ(quire_findings_count(findings), 0);
  quire_findings_free(findings);

  static_cast<std::int32_t*>(g.batch.block_table.data)[0] = 1 << 20;
  ASSERT_EQ(quire_check(&g.batch, &g.cache, &g.options, QUIRE_DEPTH_TABLES, nullptr, &findings), QUIRE_CONTRACT_VIOLATION);
  ASSERT_EQ(quire_findings_count(findings), 1);
  quire_finding finding;
  ASSERT_EQ(quire_findings_get(findings, 0, &finding), QUIRE_OK);
  EXPECT_STREQ(finding.tensor, "block_table");
  EXPECT_THAT(std::vector<int64_t>(finding.index, finding.index + finding.num_indices), ::testing::ElementsAre(0, 0));
  EXPECT_EQ(quire_findings_get(findings, 1, &finding), QUIRE_INVALID_ARGUMENT);
  quire_findings_free(findings);
}

TEST(Check, TheRuleIdIsKeptForTheThread) {
  Generated g;
  static_cast<std::int32_t*>(g.batch.block_table.data)[0] = -5;
  ASSERT_EQ(quire_check(&g.batch, &g.cache, &g.options, QUIRE_DEPTH_TABLES, nullptr, nullptr), QUIRE_CONTRACT_VIOLATION);
  EXPECT_THAT(message(), ::testing::StartsWith(quire_last_rule()));
  EXPECT_THAT(quire_last_rule(), ::testing::StartsWith("Q-T"));
}

TEST(Plan, FromALineForANamedDevice) {
  quire_plan* plan = nullptr;
  ASSERT_EQ(quire_plan_for_problem_line(kLine, "scalar", nullptr, &plan), QUIRE_OK) << message();
  std::size_t length = 0;
  ASSERT_EQ(quire_plan_text(plan, nullptr, 0, &length), QUIRE_OK);
  std::string whole(length + 1, '?');
  ASSERT_EQ(quire_plan_text(plan, whole.data(), whole.size(), nullptr), QUIRE_OK);
  EXPECT_EQ(whole.back(), '\0');
  char cut[5] = "????";
  ASSERT_EQ(quire_plan_text(plan, cut, sizeof cut, &length), QUIRE_OK);
  EXPECT_EQ(std::string(cut), whole.substr(0, 4));
  EXPECT_GE(length, sizeof cut);
  quire_plan_free(plan);
}

TEST(Plan, ErrorsKeepTheirCodes) {
  quire_plan* plan = nullptr;
  EXPECT_EQ(quire_plan_for_problem_line("q=quad", nullptr, nullptr, &plan), QUIRE_PARSE_ERROR);
  EXPECT_NE(quire_plan_for_problem_line(kLine, "no-such-device", nullptr, &plan), QUIRE_OK);
  EXPECT_THAT(message(), HasSubstr("no-such-device"));
  quire_plan_settings settings = QUIRE_PLAN_SETTINGS_INIT;
  settings.num_threads = -1;
  EXPECT_EQ(quire_plan_for_problem_line(kLine, nullptr, &settings, &plan), QUIRE_INVALID_ARGUMENT);
  settings.num_threads = 0;
  settings.kernel = "no_such_kernel";
  EXPECT_NE(quire_plan_for_problem_line(kLine, nullptr, &settings, &plan), QUIRE_OK);
  EXPECT_THAT(message(), HasSubstr("no_such_kernel"));
  EXPECT_EQ(plan, nullptr);
}

TEST(Plan, ExactWeightsAreAskedForByName) {
  constexpr const char* kPrefill = "q=bf16 heads=4:2 d=128 page=16 reqs=100@5";
  char text[8192];
  quire_plan_settings settings = QUIRE_PLAN_SETTINGS_INIT;
  ASSERT_EQ(quire_explain(kPrefill, "sm90", &settings, text, sizeof text, nullptr), QUIRE_OK) << message();
  EXPECT_THAT(text, HasSubstr("weights rounded to bf16"));
  settings.exact_weights = 1;
  ASSERT_EQ(quire_explain(kPrefill, "sm90", &settings, text, sizeof text, nullptr), QUIRE_OK) << message();
  EXPECT_THAT(text, Not(HasSubstr("weights rounded")));
  settings.exact_weights = 2;
  EXPECT_EQ(quire_explain(kPrefill, "sm90", &settings, text, sizeof text, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("exact_weights"));
}

TEST(Plan, ExplainNamesAKernel) {
  char text[4096];
  ASSERT_EQ(quire_explain(kLine, "avx512", nullptr, text, sizeof text, nullptr), QUIRE_OK) << message();
  EXPECT_THAT(text, HasSubstr("cpu_"));
}

TEST(Attend, IsRightAndCountsItsRows) {
  Generated g;
  int64_t rows = -1;
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.rows_written = &rows;
  ASSERT_EQ(attend(g, nullptr, &how), QUIRE_OK) << message();
  EXPECT_EQ(rows, 7 * 4);
  quire_comparison comparison;
  char text[1024];
  ASSERT_EQ(quire_compare(&g.batch, &g.cache, &g.options, &comparison, text, sizeof text, nullptr), QUIRE_OK) << message();
  EXPECT_EQ(comparison.num_mismatches, 0) << text;
  EXPECT_LE(comparison.worst_ratio, 1.0);
}

TEST(Attend, TakesEveryTypeOfACache) {
  for (const char* types : {"q=f32 kv=f16 heads=4:2 d=32", "q=f32 kv=fp8_e5m2fnuz heads=4:2 d=32",
                            "q=f32 kv=i8 kscale=token vscale=head heads=4:2 d=32", "q=f32 kv=nvfp4 heads=4:2 d=32",
                            "q=f32 kv=mxfp4 heads=4:2 d=32", "q=f32 kv=fp8_ds_mla heads=4:1 d=576 dv=512 latent=1"}) {
    Generated g((std::string(types) + " page=4 layout=nhd reqs=1x5,2x1@7 seed=3").c_str());
    EXPECT_EQ(attend(g), QUIRE_OK) << types << ": " << message();
  }
}

TEST(Attend, LayersOfAPreparedStepAreRight) {
  Generated g, alone;
  ASSERT_EQ(attend(alone), QUIRE_OK) << message();
  quire_plan* plan = nullptr;
  ASSERT_EQ(quire_plan_create(&g.batch, &g.cache, &g.options, nullptr, &plan), QUIRE_OK) << message();
  Workspace w(plan);
  ASSERT_EQ(quire_prepare(plan, &g.batch, &g.cache, &g.options, w.data, w.bytes, nullptr), QUIRE_OK) << message();
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.prepared = 1;
  ASSERT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, w.data, w.bytes, &how), QUIRE_OK) << message();
  EXPECT_EQ(std::memcmp(g.batch.output.data, alone.batch.output.data, 7 * 4 * 16 * sizeof(float)), 0);
  static_cast<int32_t*>(g.batch.block_table.data)[0] = -1;
  EXPECT_EQ(quire_prepare(plan, &g.batch, &g.cache, &g.options, w.data, w.bytes, nullptr), QUIRE_CONTRACT_VIOLATION);
  EXPECT_THAT(message(), HasSubstr("Q-T03"));
  how.prepared = 2;
  EXPECT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, w.data, w.bytes, &how), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("prepared"));
  quire_plan_free(plan);
}

TEST(Attend, CompareSeesOneWrongElement) {
  Generated g;
  ASSERT_EQ(attend(g), QUIRE_OK) << message();
  static_cast<float*>(g.batch.output.data)[37] += 0.01f;
  quire_comparison comparison;
  ASSERT_EQ(quire_compare(&g.batch, &g.cache, &g.options, &comparison, nullptr, 0, nullptr), QUIRE_OK);
  EXPECT_EQ(comparison.num_mismatches, 1);
  EXPECT_GT(comparison.worst_ratio, 1.0);
}

void run_in_reverse(void* context, int64_t num_tasks, void (*task)(void*, int64_t, int32_t), void* task_context) {
  *static_cast<int64_t*>(context) += num_tasks;
  for (int64_t i = num_tasks; i-- > 0;) task(task_context, i, 0);
}

TEST(Attend, RunsOnTheCallersThreadsWithTheSameBits) {
  constexpr const char* kLarge = "q=f32 kv=f32 heads=8:2 d=64 page=16 layout=nhd reqs=1x64@512,4x1@700 seed=3";
  Generated ours(kLarge);
  Generated theirs(kLarge);
  ASSERT_EQ(attend(ours), QUIRE_OK) << message();
  int64_t tasks = 0;
  quire_executor executor = QUIRE_EXECUTOR_INIT;
  executor.context = &tasks;
  executor.num_threads = 2;
  executor.run = run_in_reverse;
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.executor = &executor;
  ASSERT_EQ(attend(theirs, nullptr, &how), QUIRE_OK) << message();
  EXPECT_GT(tasks, 0);
  EXPECT_EQ(std::memcmp(ours.batch.output.data, theirs.batch.output.data, 68 * 8 * 64 * sizeof(float)), 0);

  executor.run = nullptr;
  EXPECT_EQ(attend(theirs, nullptr, &how), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("executor.run"));
}

TEST(Attend, AWorkspaceThatIsTooSmallIsRefused) {
  Generated g("q=f32 kv=f32 heads=4:2 d=64 page=16 layout=nhd reqs=1x1@4095 seed=3");
  quire_plan* plan = nullptr;
  ASSERT_EQ(quire_plan_create(&g.batch, &g.cache, &g.options, nullptr, &plan), QUIRE_OK) << message();
  if (quire_plan_workspace_bytes(plan) > 0) {
    EXPECT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, nullptr, 0, nullptr), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, nullptr, 64, nullptr), QUIRE_INVALID_ARGUMENT);
  }
  quire_plan_free(plan);
}

TEST(Attend, AWorkspaceThatSharesMemoryWithATensorIsRefused) {
  Generated g;
  quire_plan* plan = nullptr;
  ASSERT_EQ(quire_plan_create(&g.batch, &g.cache, &g.options, nullptr, &plan), QUIRE_OK) << message();
  Workspace workspace(plan);
  ASSERT_GT(workspace.bytes, 7u * 4 * 16 * sizeof(float));
  for (quire_tensor* tensor : {&g.batch.output, &g.batch.query, &g.batch.lse}) {
    const quire_tensor before = *tensor;
    tensor->data = static_cast<char*>(workspace.data) + 64;
    EXPECT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, workspace.data, workspace.bytes, nullptr),
              QUIRE_CONTRACT_VIOLATION);
    EXPECT_STREQ(quire_last_rule(), "Q-M37");
    *tensor = before;
  }
  EXPECT_EQ(quire_attend(plan, &g.batch, &g.cache, &g.options, workspace.data, workspace.bytes, nullptr), QUIRE_OK) << message();
  quire_plan_free(plan);
}

TEST(Attend, AnExecutorThatSkipsTasksIsRefused) {
  Generated g("q=f32 kv=f32 heads=8:2 d=64 page=16 layout=nhd reqs=1x64@512,4x1@700 seed=3");
  quire_executor executor = QUIRE_EXECUTOR_INIT;
  executor.num_threads = 2;
  executor.run = [](void*, int64_t num_tasks, void (*task)(void*, int64_t, int32_t), void* context) {
    for (int64_t i = 0; i < num_tasks; ++i) task(context, i / 2 * 2, 0);
  };
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.executor = &executor;
  EXPECT_EQ(attend(g, nullptr, &how), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("attend: the executor ran task 0 of "));
}

TEST(Attend, NumbersOfThreadsAreBounded) {
  Generated g;
  quire_plan_settings settings = QUIRE_PLAN_SETTINGS_INIT;
  settings.num_threads = INT32_MAX;
  EXPECT_EQ(attend(g, &settings), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("settings.num_threads: 2147483647"));
  settings.num_threads = 4096;
  EXPECT_EQ(attend(g, &settings), QUIRE_OK) << message();
  quire_executor executor = QUIRE_EXECUTOR_INIT;
  executor.num_threads = INT32_MAX;
  executor.run = run_in_reverse;
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.executor = &executor;
  EXPECT_EQ(attend(g, nullptr, &how), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("executor.num_threads: 2147483647"));
}

TEST(Ledger, AppendFeedsItAndCheckConsultsIt) {
  std::vector<float> pages(2 * 2 * 1 * 2, 0.5f);
  std::vector<float> pages_v(pages);
  const int64_t cache_shape[4] = {2, 2, 1, 2};
  quire_cache cache = QUIRE_CACHE_INIT;
  cache.k = quire_contiguous(pages.data(), QUIRE_F32, 4, cache_shape);
  cache.v = quire_contiguous(pages_v.data(), QUIRE_F32, 4, cache_shape);

  float rows[2][2] = {{1, 2}, {3, 4}};
  int64_t slots[2] = {2, 3}, requests[2] = {9, 9}, positions[2] = {0, 1};
  const int64_t row_shape[3] = {2, 1, 2}, slot_shape[1] = {2};
  const quire_tensor key = quire_contiguous(rows, QUIRE_F32, 3, row_shape);
  const quire_tensor slot_mapping = quire_contiguous(slots, QUIRE_I64, 1, slot_shape);

  quire_ledger* ledger = nullptr;
  ASSERT_EQ(quire_ledger_create(2, 2, &ledger), QUIRE_OK);
  ASSERT_EQ(quire_ledger_begin_step(ledger, 4), QUIRE_OK);
  EXPECT_EQ(quire_ledger_begin_step(ledger, 3), QUIRE_INVALID_ARGUMENT);
  quire_append_options how = QUIRE_APPEND_OPTIONS_INIT;
  how.num_tags = 2;
  EXPECT_EQ(quire_append(&cache, &key, &key, &slot_mapping, &how), QUIRE_INVALID_ARGUMENT) << "tags without a ledger";
  how.ledger = ledger;
  EXPECT_EQ(quire_append(&cache, &key, &key, &slot_mapping, &how), QUIRE_INVALID_ARGUMENT) << "no tags given";
  how.requests = requests;
  how.positions = positions;
  ASSERT_EQ(quire_append(&cache, &key, &key, &slot_mapping, &how), QUIRE_OK) << message();

  float output[2] = {};
  int32_t query_start_loc[2] = {0, 1}, seq_lens[1] = {2}, block_table[1] = {1}, ids[1] = {9};
  const int64_t one[3] = {1, 1, 2}, two[1] = {2};
  quire_batch batch = QUIRE_BATCH_INIT;
  batch.query = quire_contiguous(rows, QUIRE_F32, 3, one);
  batch.output = quire_contiguous(output, QUIRE_F32, 3, one);
  batch.query_start_loc = quire_contiguous(query_start_loc, QUIRE_I32, 1, two);
  batch.seq_lens = quire_contiguous(seq_lens, QUIRE_I32, 1, one);
  batch.block_table = quire_contiguous(block_table, QUIRE_I32, 2, one);
  batch.request_ids = quire_contiguous(ids, QUIRE_I32, 1, one);
  EXPECT_EQ(quire_check(&batch, &cache, nullptr, QUIRE_DEPTH_TABLES, ledger, nullptr), QUIRE_OK) << message();
  ids[0] = 8;
  EXPECT_EQ(quire_check(&batch, &cache, nullptr, QUIRE_DEPTH_TABLES, ledger, nullptr), QUIRE_CONTRACT_VIOLATION);
  EXPECT_STREQ(quire_last_rule(), "Q-L02");
  ASSERT_EQ(quire_ledger_share(ledger, 1, 8), QUIRE_OK);
  EXPECT_EQ(quire_check(&batch, &cache, nullptr, QUIRE_DEPTH_TABLES, ledger, nullptr), QUIRE_OK) << message();
  ASSERT_EQ(quire_ledger_recycle(ledger, 1), QUIRE_OK);
  EXPECT_EQ(quire_check(&batch, &cache, nullptr, QUIRE_DEPTH_TABLES, ledger, nullptr), QUIRE_CONTRACT_VIOLATION);
  EXPECT_STREQ(quire_last_rule(), "Q-L04");
  EXPECT_EQ(quire_ledger_record(ledger, 4, 9, 0), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ledger_recycle(ledger, 2), QUIRE_INVALID_ARGUMENT);
  quire_ledger_free(ledger);
  EXPECT_EQ(quire_ledger_create(INT64_MAX, 2, &ledger), QUIRE_OUT_OF_MEMORY);
  EXPECT_EQ(ledger, nullptr);
}

TEST(Merge, AnEmptySideKeepsTheOthersBits) {
  float a[4] = {1, 2, 3, 4}, b[4] = {9, 9, 9, 9}, out[4] = {};
  float lse_a[2] = {0.25f, -1}, lse_b[2] = {-INFINITY, -INFINITY}, lse[2] = {};
  const int64_t shape[3] = {2, 1, 2};
  const quire_tensor out_a = quire_contiguous(a, QUIRE_F32, 3, shape), out_b = quire_contiguous(b, QUIRE_F32, 3, shape);
  const quire_tensor la = quire_contiguous(lse_a, QUIRE_F32, 2, shape), lb = quire_contiguous(lse_b, QUIRE_F32, 2, shape);
  const quire_tensor o = quire_contiguous(out, QUIRE_F32, 3, shape), l = quire_contiguous(lse, QUIRE_F32, 2, shape);
  ASSERT_EQ(quire_merge(&out_a, &la, &out_b, &lb, &o, &l), QUIRE_OK) << message();
  EXPECT_THAT(out, ::testing::ElementsAreArray(a));
  EXPECT_THAT(lse, ::testing::ElementsAreArray(lse_a));
  EXPECT_EQ(quire_merge(&out_a, &la, &out_b, &lb, &o, nullptr), QUIRE_OK) << message();
  // A stream means nothing to a CPU.
  EXPECT_EQ(quire_merge_on_stream(&out_a, &la, &out_b, &lb, &o, nullptr, out), QUIRE_OK) << message();
}

// 1.3 / 0.5 = 2.6 lies between the codes of 2.5 and 2.75; 1000 / 0.5 is beyond 448, the largest number of fp8_e4m3fn.
TEST(Merge, StoresCodesOfWhatIsDividedByTheScale) {
  const std::int64_t shape[] = {1, 1, 4};
  float a[] = {1.3f, -0.5f, 1000.0f, 0.0f}, b[4] = {}, lse_a[] = {0.7f}, lse_b[] = {-INFINITY}, half[] = {0.5f};
  std::uint8_t out[4] = {};
  const quire_tensor out_a = quire_contiguous(a, QUIRE_F32, 3, shape), out_b = quire_contiguous(b, QUIRE_F32, 3, shape);
  const quire_tensor la = quire_contiguous(lse_a, QUIRE_F32, 2, shape), lb = quire_contiguous(lse_b, QUIRE_F32, 2, shape);
  const quire_tensor o = quire_contiguous(out, QUIRE_FP8_E4M3FN, 3, shape), scale = quire_contiguous(half, QUIRE_F32, 1, shape);
  ASSERT_EQ(quire_merge_quantised(&out_a, &la, &out_b, &lb, &o, nullptr, &scale, nullptr), QUIRE_OK) << message();
  EXPECT_THAT(out, ::testing::ElementsAre(0x42, 0xB8, 0x7E, 0x00));
  EXPECT_EQ(quire_merge_quantised(&out_a, &la, &out_b, &lb, &o, nullptr, nullptr, nullptr), QUIRE_CONTRACT_VIOLATION);
}

TEST(Merge, AStackIsMergedInOneCall) {
  const std::int64_t stack[] = {3, 1, 1, 2};
  float rows[] = {1, 2, 9, 9, 3, 6}, weights[] = {0, -INFINITY, 0}, out[2] = {}, lse[1] = {};
  const quire_tensor outs = quire_contiguous(rows, QUIRE_F32, 4, stack), lses = quire_contiguous(weights, QUIRE_F32, 3, stack);
  const quire_tensor o = quire_contiguous(out, QUIRE_F32, 3, stack + 1), l = quire_contiguous(lse, QUIRE_F32, 2, stack + 1);
  ASSERT_EQ(quire_merge_many(&outs, &lses, &o, &l, nullptr, nullptr), QUIRE_OK) << message();
  EXPECT_THAT(out, ::testing::ElementsAre(2, 4));
  EXPECT_FLOAT_EQ(lse[0], std::log(2.0f));
  EXPECT_EQ(quire_merge_many(&outs, nullptr, &o, &l, nullptr, nullptr), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_merge_many(&outs, &lses, &outs, &l, nullptr, nullptr), QUIRE_CONTRACT_VIOLATION);
}

TEST(Padding, GoesThroughCasesAndCalls) {
  Generated g("q=f32 heads=4:2 d=16 page=4 reqs=1x5,2x1@7,0 lse=1 seed=3 pad=2:zero");
  EXPECT_EQ(g.batch.padding, QUIRE_PADDING_ZERO);
  ASSERT_EQ(attend(g), QUIRE_OK) << message();
  for (int i = 0; i < 2 * 4 * 16; ++i) ASSERT_EQ(static_cast<const float*>(g.batch.output.data)[7 * 64 + i], 0.0f) << i;
  quire_comparison judged;
  ASSERT_EQ(quire_compare(&g.batch, &g.cache, &g.options, &judged, nullptr, 0, nullptr), QUIRE_OK) << message();
  EXPECT_EQ(judged.num_mismatches, 0);
  EXPECT_EQ(judged.num_elements, 9 * 4 * 17);
  g.batch.padding = QUIRE_PADDING_REFUSED;
  EXPECT_EQ(attend(g), QUIRE_CONTRACT_VIOLATION);
  EXPECT_THAT(message(), HasSubstr("Q-T04"));
}

TEST(Padding, IsAbsentInABatchThatSaysNothing) {
  const quire_batch batch = QUIRE_BATCH_INIT;
  EXPECT_EQ(batch.padding, QUIRE_PADDING_REFUSED);
}

// nan_if_refused is a promise of GPUs; the number must be a yes or a no everywhere.
TEST(Attend, OptionsAreYesOrNo) {
  Generated g;
  quire_attend_options how = QUIRE_ATTEND_OPTIONS_INIT;
  how.nan_if_refused = 1;
  EXPECT_EQ(attend(g, nullptr, &how), QUIRE_OK) << message();
  how.nan_if_refused = 2;
  EXPECT_EQ(attend(g, nullptr, &how), QUIRE_INVALID_ARGUMENT);
  EXPECT_THAT(message(), HasSubstr("attend_options.nan_if_refused: 2"));
}

TEST(Case, SurvivesAFile) {
  Generated g(
      "q=bf16 kv=fp8_e4m3fn heads=4:2 d=16 page=4 layout=packed reqs=1x5,2x1@7 window=6 cap=30 alibi=1 kscale=head seed=3");
  const std::string path = (std::filesystem::path(::testing::TempDir()) / "capi_case.safetensors").string();
  ASSERT_EQ(quire_case_write(g.handle, path.c_str()), QUIRE_OK) << message();
  quire_case* read = nullptr;
  ASSERT_EQ(quire_case_read(path.c_str(), &read), QUIRE_OK) << message();
  quire_batch batch = QUIRE_BATCH_INIT;
  quire_cache cache = QUIRE_CACHE_INIT;
  quire_options options = QUIRE_OPTIONS_INIT;
  ASSERT_EQ(quire_case_views(read, &batch, &cache, &options), QUIRE_OK) << message();
  EXPECT_EQ(options.has_sliding_window, 1);
  EXPECT_EQ(options.sliding_window, 6);
  EXPECT_EQ(options.has_logits_soft_cap, 1);
  EXPECT_EQ(options.logits_soft_cap, 30.0f);
  EXPECT_EQ(cache.layout, QUIRE_PACKED);
  EXPECT_EQ(cache.k.dtype, QUIRE_FP8_E4M3FN);
  EXPECT_EQ(batch.query.shape[0], 7);
  quire_tensor observed = batch.query;
  ASSERT_EQ(quire_case_observed(read, &observed, nullptr), QUIRE_OK);
  EXPECT_EQ(observed.dtype, QUIRE_DTYPE_NONE);
  quire_case_free(read);
  std::filesystem::remove(path);
  EXPECT_EQ(quire_case_read("no/such/file.safetensors", &read), QUIRE_IO_ERROR);
  EXPECT_THAT(message(), HasSubstr("no/such/file.safetensors"));
}

}  // namespace
}  // namespace quire
