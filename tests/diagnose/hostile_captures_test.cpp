// SPDX-License-Identifier: Apache-2.0
// Broken captures: bytes, numbers and words of good ones are changed at random, and check, explain and diagnose are asked. None
// of them may crash, take long, or take much memory. QUIRE_HOSTILE_CAPTURES asks for more than the 600 of every run.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "diagnose/diagnose_util.h"
#include "quire/contract.hpp"
#include "quire/plan.hpp"

namespace quire::test {
namespace {

constexpr int kSlow = 10;               // seconds of one capture
constexpr long kMostKiB = 1024 * 1024;  // memory of a process that looks at many captures
constexpr std::uint64_t kPerProcess = 200;

/// Captures of every kind of tensor, with an output that is wrong in places.
std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const char* line : {"q=f32 heads=4:2 d=8 page=4 reqs=3@10,1@12,2 lse=1",
                           "q=bf16 kv=fp8_e4m3fn heads=4:1 d=16 page=8 reqs=9@20,1@40 kscale=head vscale=tensor",
                           "q=f16 heads=2 d=8 page=2 layout=packed reqs=1@9,4 index=i64 window=5",
                           "q=f16 heads=6:3 d=8 page=4 layout=hnd reqs=5@6/8,1@7/7 alibi=1 sinks=1 cap=20 lse=1"}) {
    Case c = with_fault(line, "causal_excludes_own_key");
    const std::string path = ::testing::TempDir() + "hostile_seed.safetensors";
    EXPECT_TRUE(write_capture(path, c).ok());
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    ::unlink(path.c_str());
  }
  return files;
}

/// Changes one capture in one to four places.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string mutated(std::string file) {
    for (std::size_t left = 1 + below(4); left > 0; --left) switch (below(6)) {
        case 0: file[below(file.size())] = static_cast<char>(below(256)); break;
        case 1: header_number(file); break;
        case 2: element(file); break;
        case 3: header_word(file); break;
        case 4: file.resize(below(8) == 0 ? below(file.size() + 1) : file.size()); break;
        default: {
          char& byte = file[below(std::min<std::size_t>(file.size(), 8))];
          byte = static_cast<char>(byte ^ 1 << below(8));
          break;
        }
      }
    return file.empty() ? std::string(1, '\0') : file;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }

  static std::size_t header_end(const std::string& file) {
    const std::size_t end = file.rfind("}}");
    return end == std::string::npos ? file.size() : end;
  }
  /// A number of the header becomes an extreme one; the header keeps its length where the digits allow.
  void header_number(std::string& file) {
    const std::size_t end = header_end(file);
    std::size_t at = below(end);
    while (at < end && (file[at] < '0' || file[at] > '9')) ++at;
    if (at == end) return;
    static constexpr std::array<const char*, 12> kNumbers = {
        "0",   "1",   "-1", "2147483647", "2147483648", "4294967296", "9223372036854775807", "18446744073709551615",
        "1e9", "NaN", "7",  "64"};
    const std::string number = kNumbers[below(kNumbers.size())];
    std::size_t digits = 0;
    while (at + digits < end && file[at + digits] >= '0' && file[at + digits] <= '9') ++digits;
    file.replace(at, digits, number);
    if (below(4) != 0) fix_length(file);
  }
  void header_word(std::string& file) {
    static constexpr std::array<const char*, 14> kWords = {"F32", "F16", "BF16",   "F8_E4M3", "F8_E5M2", "U8",     "I32",
                                                           "I64", "nhd", "packed", "query",   "k_cache", "output", "seq_lens"};
    const std::string from = kWords[below(kWords.size())], to = kWords[below(kWords.size())];
    const std::size_t at = file.find(from);
    if (at == std::string::npos || at > header_end(file)) return;
    file.replace(at, from.size(), to);
    fix_length(file);
  }
  /// The length in front of the header, after a change of its text; the padding goes with it.
  static void fix_length(std::string& file) {
    const std::size_t end = header_end(file);
    if (end + 2 > file.size() || end < 8) return;
    std::size_t length = end + 2 - 8;
    while (8 + length < file.size() && file[8 + length] == ' ') ++length;
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(static_cast<std::uint64_t>(length) >> (8 * i) & 0xFF);
  }
  /// Four or eight bytes of the data become an extreme integer, a NaN or an infinity.
  void element(std::string& file) {
    static constexpr std::array<std::uint64_t, 10> kValues = {
        0, 1, ~0ull, 0x7FFFFFFF, 0x80000000, 0x7F800000, 0x7FC00000, 0x7FFFFFFFFFFFFFFF, 1ull << 32, 0x7C007C007C007C00};
    const std::size_t begin = std::min(file.size(), header_end(file) + 2), width = below(2) == 0 ? 4 : 8;
    if (begin + width > file.size()) return;
    const std::size_t at = begin + below((file.size() - begin - width) / 4 + 1) * 4;
    const std::uint64_t value = kValues[below(kValues.size())];
    for (std::size_t i = 0; i < width && at + i < file.size(); ++i) file[at + i] = static_cast<char>(value >> (8 * i) & 0xFF);
  }

  std::mt19937_64 random_;
};

/// True if the file was a batch that diagnose answered about.
bool ask(const std::string& file) {
  const Result<Case> c = parse_capture(std::as_bytes(std::span(file)));
  if (!c.ok()) return false;
  for (const Depth depth : {Depth::metadata, Depth::tables, Depth::contents})
    static_cast<void>(check(c->batch, c->cache, c->options, depth));
  if (!check(c->batch, c->cache, c->options, Depth::metadata).ok()) return false;
  const Problem problem = problem_of(c->batch, c->cache, c->options);
  static_cast<void>(explain(problem, host_device()));
  return diagnose(c.value(), {.full = false, .seconds = 0.01, .progress = {}}).ok();
}

/// Captures [first, last) in a process of their own. Its exit status: 0 well, 3 one was slow, a signal if it crashed.
int run_child(const std::vector<std::string>& files, std::uint64_t first, std::uint64_t last, rusage& used) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (std::uint64_t i = first; i < last; ++i) {
      ::alarm(3 * kSlow);
      const auto begin = std::chrono::steady_clock::now();
      ask(Mutator(i).mutated(files[i % files.size()]));
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(kSlow)) ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::wait4(child, &status, 0, &used), child);
  return status;
}

TEST(HostileCaptures, NeitherCrashNorTakeLongNorTakeMuch) {
  const char* asked = std::getenv("QUIRE_HOSTILE_CAPTURES");
  const std::uint64_t count = asked == nullptr ? 600 : std::strtoull(asked, nullptr, 10);
  const std::vector<std::string> files = seeds();
  std::uint64_t answered = 0;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(count, 100); ++i)
    answered += ask(Mutator(i).mutated(files[i % files.size()])) ? 1 : 0;
  EXPECT_GT(answered, 5u) << "hardly a mutated capture is a capture: the mutations are too coarse";
  EXPECT_LT(answered, 95u) << "hardly a mutation breaks anything";
  for (std::uint64_t first = 0; first < count; first += kPerProcess) {
    rusage used{};
    const std::uint64_t last = std::min(count, first + kPerProcess);
    const bool failed = run_child(files, first, last, used) != 0;
    for (std::uint64_t i = first; failed && i < last; ++i)
      EXPECT_EQ(run_child(files, i, i + 1, used), 0) << "mutation " << i << " (a wait status: 768 is slow)";
    EXPECT_LT(used.ru_maxrss, kMostKiB) << "captures from " << first << " on";
  }
}

}  // namespace
}  // namespace quire::test
