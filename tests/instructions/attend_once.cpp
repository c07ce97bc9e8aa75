// SPDX-License-Identifier: Apache-2.0
// Program that counts.py runs under callgrind: plans and attends a problem line for the pretend device avx2 on one thread, so
// that the count of instructions is a property of the code and not of the machine.
//
// usage: attend_once --build          prints what the count depends on besides the code
//        attend_once LINE [REPEATS]   plans and attends LINE; REPEATS doubles (or more) the work, as counts.py --self-test does
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "quire/quire.hpp"
#include "quire/tools/capture.hpp"

namespace {

int fail(const char* what, const quire::Status& status) {
  std::fprintf(stderr, "attend_once: %s: %s\n", what, status.message().c_str());
  return 1;
}

int attend_once(const char* text, int repeats) {
  const auto line = quire::parse_problem_line(text);
  if (!line.ok()) return fail("line", line.status());
  const auto c = quire::make_case(line.value());
  if (!c.ok()) return fail("case", c.status());
  const std::unique_ptr<quire::Executor> alone = quire::make_thread_pool(1);
  quire::AttendOptions options;
  options.executor = alone.get();
  const quire::Device device = quire::find_device("avx2").value();
  for (int i = 0; i < repeats; ++i) {
    const auto plan = quire::plan(quire::problem_of(c->batch, c->cache, c->options), device, {.num_threads = 1});
    if (!plan.ok()) return fail("plan", plan.status());
    const std::size_t bytes = quire::workspace_bytes(plan.value());
    std::vector<std::byte> memory(bytes + 64);
    void* aligned = memory.data();
    std::size_t room = memory.size();
    std::align(64, bytes, aligned, room);
    const quire::Status status =
        quire::attend(plan.value(), c->batch, c->cache, c->options, {static_cast<std::byte*>(aligned), bytes}, options);
    if (!status.ok()) return fail("attend", status);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--build") == 0) {
    std::printf("%s; %s\n", QUIRE_COMPILER, QUIRE_FLAGS);
    return 0;
  }
  if (argc != 2 && argc != 3) {
    std::fputs("usage: attend_once --build | LINE [REPEATS]\n", stderr);
    return 2;
  }
  return attend_once(argv[1], argc == 3 ? std::atoi(argv[2]) : 1);
}
