// SPDX-License-Identifier: Apache-2.0
// Arguments of the quire command: parses them, calls one command, writes its report. No exception leaves run_command_line().
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "commands.h"
#include "files/atomic_file.h"
#include "quire/plan.hpp"
#include "suggest.h"
#include "text/duration.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

constexpr const char* kFooter =
    "exit codes\n"
    "  0   ok\n"
    "  1   findings, or an output that does not match\n"
    "  2   wrong usage, malformed problem line or capture\n"
    "  3   a file cannot be opened, read or written\n"
    "  4   valid, but no kernel, device or memory for it here\n"
    "  70  internal error: please report it\n";

constexpr const char* kEnvironment =
    "environment\n"
    "  QUIRE_CPU          scalar, avx2, avx512, avx512bf16 or amx: use no newer CPU instructions than these\n"
    "  QUIRE_NUM_THREADS  threads to use; default: all cores this process may use\n"
    "  QUIRE_HIP_LIBRARY  the HIP runtime to open; default: libamdhip64.so.7 or .6, if there is one\n"
    "  NO_COLOR           if set, no colours\n"
    "  COLUMNS            width of a diagnosis where stdout is no terminal; default: 80\n";

constexpr const char* kInputHelp = "a problem line, in one or several words, or the path of a .safetensors capture";

constexpr const char* kCommandFooter =
    "A problem line: q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=nhd reqs=1x4096,64x1@2048\n"
    "(reqs = count x query_len @ context_len; full grammar: docs/reference/problem_line.md)\n"
    "Exit codes: 0 ok, 1 findings or mismatch, 2 usage or parse error, 3 I/O, 4 unsupported, 70 internal.\n";

/// The paths that a call reads, and those that it writes beside the names of their options. Parsing fills the variables that the
/// pointers name.
struct CallFiles {
  std::vector<const Words*> read;
  std::vector<std::pair<std::string, const std::string*>> written;
};

struct Arguments {
  bool json = false;
  CallFiles files;
  CheckArgs check;
  ExplainArgs explain;
  RunArgs run;
  CaptureArgs capture;
  CompareCachesArgs compare_caches;
  DiagnoseArgs diagnose;
  VerifyArgs verify;
  BenchArgs bench;
  BenchCompareArgs bench_compare;
  std::string info;
  std::string rule;
  std::string shell;
};

/// Accepts exactly these words; the message names them and the nearest one.
CLI::Validator one_of(std::vector<std::string> words) {
  const auto check = [words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    const std::string near = did_you_mean(text, words);
    return formatted("'{}' is not one of {}{}{}", text.substr(0, 64), fmt::join(words, ", "), near.empty() ? "" : "; ", near);
  };
  return CLI::Validator(check, "");
}

CLI::Validator whole_number(int max) {
  const auto check = [max](const std::string& text) {
    const bool digits = !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
    const int value = digits ? std::stoi(text) : 0;
    return value >= 1 && value <= max ? std::string()
                                      : formatted("'{}' is not a whole number from 1 to {}", text.substr(0, 64), max);
  };
  return CLI::Validator(check, "");
}

/// Takes seconds or minutes that are finite and at least `least`, as the library does.
CLI::Validator duration(double least) {
  const auto check = [least](const std::string& text) {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return formatted("'{}' is not a number", text.substr(0, 64));
    return duration_error(value, least);
  };
  return CLI::Validator(check, "");
}

void add_input(CLI::App* command, Words& words, CallFiles& files) {
  command->add_option("PROBLEM|FILE", words, kInputHelp)->required()->type_name("");
  files.read.push_back(&words);
}

CLI::Option* add_output(CLI::App* command, const std::string& names, std::string& path, const char* help, CallFiles& files) {
  files.written.emplace_back(names.substr(names.find("--")), &path);
  return command->add_option(names, path, help)->type_name("FILE");
}

void add_kernel(CLI::App* command, std::string& kernel) {
  command->add_option("--kernel", kernel, "force this kernel (see `quire info kernels`)")->type_name("NAME");
}

void add_check(CLI::App& app, CheckArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("check", "Apply the contract rules to a batch and list every finding");
  add_input(command, args.input, files);
  command
      ->add_option_function<std::string>(
          "--depth",
          [&args](const std::string& text) {
            args.depth = text == "metadata" ? Depth::metadata : text == "tables" ? Depth::tables : Depth::contents;
          },
          "how deep to look: metadata, tables or contents (the default)")
      ->type_name("DEPTH")
      ->check(one_of({"metadata", "tables", "contents"}));
}

void add_explain(CLI::App& app, ExplainArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("explain", "Say which kernel serves a problem and why every other one does not");
  add_input(command, args.input, files);
  command->add_option("--device", args.device, "plan for this device (see `quire info devices`); default: this machine")
      ->type_name("NAME");
  add_kernel(command, args.kernel);
  command->add_flag("--all", args.all, "answer for every known device");
  command->add_flag("--batch-invariant", args.batch_invariant,
                    "plan so that a request's bits do not depend on the rest of the batch");
  command->add_flag("--exact-weights", args.exact_weights, "plan with softmax weights in f32 precision in every row");
  command
      ->add_option("--lists", args.lists, "rows see the keys of lists: slot:2048, page:64, or page:64:head for lists by KV head")
      ->type_name("UNIT:N");
}

void add_run(CLI::App& app, RunArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("run", "Check, plan and compute a batch, and compare it with the fp64 reference");
  add_input(command, args.input, files);
  add_kernel(command, args.kernel);
  command->add_option("--threads", args.threads, "threads (default: all cores this process may use)")
      ->type_name("N")
      ->check(whole_number(4096));
  command->add_flag("--batch-invariant", args.batch_invariant,
                    "plan so that a request's bits do not depend on the rest of the batch");
  command->add_flag("--verify", args.verify, "compare with the fp64 reference (the default)");
  command->add_flag("--no-verify", args.no_verify, "do not compare with the reference: faster");
  command->add_option("--repeat", args.repeat, "compute this many times (default: 1); the bits must not change")
      ->type_name("N")
      ->check(whole_number(1000000));
  add_output(command, "--save", args.save, "write a capture with this run's output as its observed output", files);
}

void add_diagnose(CLI::App& app, DiagnoseArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("diagnose", "Find out where the observed output of a capture is wrong, and why");
  command->add_option("FILE", args.input, "a .safetensors capture with an observed output")->required()->type_name("");
  files.read.push_back(&args.input);
  command->add_flag("--full", args.full, "compare every row with the fp64 reference and try every cause, however long it takes");
  command->add_option("--seconds", args.seconds, "time limit of the search for a cause (default: 5)")
      ->type_name("S")
      ->check(duration(0));
  command
      ->add_option("--profile", args.profile,
                   "what the kernel may round, e.g. weights=bf16, or plain (default: inferred; docs/reference/numerics.md)")
      ->type_name("WORDS");
  add_output(command, "--reduced", args.reduced, "where the reduced capture goes (default: FILE with .reduced before its suffix)",
             files);
  command->add_flag("--no-reduced", args.no_reduced, "write no reduced capture");
  command->add_flag("--verbose", args.verbose,
                    "print everything: wrong rows, laws, facts, other suspects and why it is not them");
  add_output(command, "--html", args.html, "write the report as one self-contained page", files);
}

void add_capture(CLI::App& app, CaptureArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("capture", "Write the batch of a problem line to a capture file");
  add_input(command, args.input, files);
  add_output(command, "-o,--output", args.output, "file to write, usually .safetensors", files)->required();
  command->add_option("--fault", args.fault, "store the output of a kernel with this fault (docs/reference/faults.md)")
      ->type_name("ID");
  command->add_option("--fill", args.fill, "content of rows that the fault leaves unwritten: nan (the default) or garbage")
      ->type_name("WHAT")
      ->check(one_of({"nan", "garbage"}));
}

void add_compare_caches(CLI::App& app, CompareCachesArgs& args) {
  CLI::App* command =
      app.add_subcommand("compare-caches", "Say what became of each position of each KV head of A's cache in B's");
  command->add_option("A", args.a, "a .safetensors capture, or a problem line in one quoted word")->required()->type_name("");
  command->add_option("B", args.b, "the same, of the cache that A's rows are looked up in")->required()->type_name("");
  const auto heads = [&](const char* name, std::vector<std::int64_t>& into, const char* help) {
    command->add_option(name, into, help)->type_name("N")->allow_extra_args(false)->delimiter(',');
  };
  heads("--heads-a", args.heads_a, "the model's numbers of A's KV heads, as 2,3, if A is the cache of a rank (default: 0,1,...)");
  heads("--heads-b", args.heads_b, "the model's numbers of B's KV heads, as 2,3, if B is the cache of a rank (default: 0,1,...)");
}

void add_verify(CLI::App& app, VerifyArgs& args, CallFiles& files) {
  CLI::App* command = app.add_subcommand("verify", "Test kernels with the conformance suite, and the suite with planted bugs");
  command
      ->add_option("--backend", args.backends,
                   "cpu, cuda or hip (the planned kernel there; cpu is the default), a kernel by name, or all")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_option("--matrix", args.matrices, "notes, hazards (the default), random or all")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(one_of({"notes", "hazards", "random", "all"}));
  command->add_option("--line", args.lines, "a problem line of your own, in quotes; may be given again")
      ->type_name("LINE")
      ->allow_extra_args(false);
  command->add_option("--types", args.types, "cases in these query:cache types only, as bf16:bf16,f16:fp8_e4m3fn")
      ->type_name("Q:KV")
      ->allow_extra_args(false)
      ->delimiter(',');
  command->add_option("--dims", args.dims, "cases with these head_dims only, as 64,128")
      ->type_name("N")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->check(whole_number(1000000));
  command->add_option("--layouts", args.layouts, "cases in these cache layouts only, as nhd,hnd")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->check(one_of({"nhd", "hnd", "packed"}));
  command->add_flag("--quick", args.quick, "a subset of every matrix, in less than a minute");
  command->add_flag("--peer", args.peer,
                    "also count the planted bugs that vLLM's own test would catch with its data and tolerance");
  command->add_flag("--no-power", args.no_power,
                    "plant no bugs: faster, but the report does not say which bugs the cases would catch");
  command->add_option("--seed", args.seed, "seed of the random matrix (default: 1)")
      ->type_name("N")
      ->check(whole_number(999999999));
  command->add_option("--cases", args.cases, "cases of the random matrix (default: 200)")
      ->type_name("N")
      ->check(whole_number(1000000));
  command
      ->add_option("--soak", args.soak,
                   "test new random batches for this many minutes, or until Ctrl-C; the same folder continues an earlier soak")
      ->type_name("MINUTES")
      ->check(duration(0.001));
  command->add_option("--soak-folder", args.soak_folder, "where a soak keeps its state, log and findings (default: quire-soak)")
      ->type_name("DIR");
  add_output(command, "--html", args.html, "write one self-contained page with pictures", files);
}

void add_bench_compare(CLI::App* bench, BenchCompareArgs& args) {
  CLI::App* command = bench->add_subcommand("compare", "Say what became faster or slower between two reports");
  command->add_option("OLD", args.before, "what `quire bench --json` printed before the change")->required()->type_name("");
  command->add_option("NEW", args.after, "what it printed after the change")->required()->type_name("");
  command->add_flag("--force", args.force, "also compare reports of different machines");
}

void add_bench(CLI::App& app, BenchArgs& args, BenchCompareArgs& compare, CallFiles& files) {
  CLI::App* command = app.add_subcommand("bench", "Time kernels against the ceilings of this machine, and verify their output");
  command->add_option("LINES|FILE", args.input, "problem lines, each in one quoted word; or the words of one; or a capture")
      ->type_name("");
  const auto several = [&](const char* name, std::vector<std::string>& into, const char* what, const char* type) {
    command->add_option(name, into, what)->type_name(type)->allow_extra_args(false);
  };
  several("--cases", args.cases, "a file of problem lines; may be given again", "FILE");
  several("--capture", args.captures, "a capture; may be given again", "FILE");
  several("--workload", args.workloads, "W1 to W5, W1s to W5s (for two cores) or targets; may be given again", "NAME");
  command->add_option("--device", args.device, "cpu (the default) or cuda (the current GPU)")
      ->type_name("NAME")
      ->check(one_of({"cpu", "cuda", "hip"}));
  several("--kernel", args.kernels, "force this kernel; may be given again", "NAME");
  command->add_option("--threads", args.threads, "threads (default: 1, and all this process may use); may be given again")
      ->type_name("N")
      ->allow_extra_args(false)
      ->check(whole_number(4096));
  command->add_flag("--batch-invariant", args.batch_invariant, "also time batch-invariant plans, in turns with the others");
  command->add_option("--seconds", args.seconds, "about how long each result is timed (default: 2)")
      ->type_name("S")
      ->check(duration(0.001));
  command->add_flag("--no-verify", args.no_verify, "do not compare with the fp64 reference: faster");
  files.read.insert(files.read.end(), {&args.input, &args.cases, &args.captures});
  add_output(command, "--save", args.save, "also write the JSON of the report", files);
  add_output(command, "--html", args.html, "write one self-contained page with roofline and thread scaling", files);
  add_bench_compare(command, compare);
}

void add_lists(CLI::App& app, Arguments& args) {
  CLI::App* info = app.add_subcommand("info", "Show this build, its devices, and which kernel would run on each of them and why");
  info->add_option("WHAT", args.info, "devices (also those that `quire explain` knows by name) or kernels: a list of them")
      ->type_name("")
      ->check(one_of({"devices", "kernels"}));
  CLI::App* completions = app.add_subcommand("completions", "Print the completion script of a shell");
  completions->add_option("SHELL", args.shell, "bash, zsh or fish; e.g. source <(quire completions bash)")
      ->required()
      ->type_name("")
      ->check(one_of({"bash", "zsh", "fish"}));
  CLI::App* rules = app.add_subcommand("rules", "List the contract rules, or explain one");
  rules->add_option("id", args.rule, "a rule id such as Q-T03: statement, reason and example")->type_name("ID");
}

void build(CLI::App& app, Arguments& args) {
  app.name("quire");
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.set_help_flag("-h,--help", "print this help and exit");
  app.require_subcommand(1);
  app.footer(std::string(kEnvironment) + "\n" + kFooter);
  add_check(app, args.check, args.files);
  add_explain(app, args.explain, args.files);
  add_run(app, args.run, args.files);
  add_capture(app, args.capture, args.files);
  add_diagnose(app, args.diagnose, args.files);
  add_compare_caches(app, args.compare_caches);
  add_verify(app, args.verify, args.files);
  add_bench(app, args.bench, args.bench_compare, args.files);
  add_lists(app, args);
  std::vector<CLI::App*> commands = app.get_subcommands({});
  commands.push_back(app.get_subcommand("bench")->get_subcommand("compare"));
  for (CLI::App* command : commands) {
    command->add_flag("--json", args.json, "print one JSON object (schema: docs/reference/cli.md)");
    command->footer(kCommandFooter);
  }
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

/// The nearest option or command to the first word that was not understood.
std::string hint_for(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> commands = command_names(app);
  const std::string first = argc > 1 ? argv[1] : "";
  if (std::find(commands.begin(), commands.end(), first) == commands.end()) {
    const std::string near = did_you_mean(first, commands);
    return near.empty() ? "`quire --help` lists the commands" : near;
  }
  const CLI::App* command = app.get_subcommand(first);
  std::vector<std::string> options;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  for (int i = 2; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (!word.starts_with("--") || std::find(options.begin(), options.end(), word) != options.end()) continue;
    if (const std::string near = did_you_mean(word, options); !near.empty()) return near;
  }
  return formatted("`quire {} --help` shows its arguments", command->get_name());
}

/// CLI11 answers an unknown command with "A subcommand is required"; say which word was not understood.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::vector<std::string> commands = command_names(app);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) return "no command given";
  const bool known = first.starts_with("-") || std::find(commands.begin(), commands.end(), first) != commands.end();
  return known ? error.what() : formatted("no command '{}'", first.substr(0, 64));
}

/// QUIRE_CPU and QUIRE_NUM_THREADS are ignored by the library if malformed; the command says so instead.
std::string environment_error() {
  const char* cpu = std::getenv("QUIRE_CPU");
  const std::string_view level = cpu == nullptr ? "" : cpu;
  if (!level.empty() && level != "scalar" && level != "avx2" && level != "avx512" && level != "avx512bf16" && level != "amx")
    return formatted("QUIRE_CPU={} is not one of scalar, avx2, avx512, avx512bf16, amx", level);
  const char* threads = std::getenv("QUIRE_NUM_THREADS");
  const std::string count = threads == nullptr ? "" : threads;
  const std::string error = count.empty() ? "" : whole_number(4096)(count);
  if (!error.empty()) return formatted("QUIRE_NUM_THREADS: {}", error);
  return {};
}

/// Names an output that would overwrite an input of the call or another output of the call; empty if there is none.
std::string overwriting_error(const CallFiles& files) {
  for (const auto& [option, path] : files.written) {
    for (const Words* words : files.read)
      for (const std::string& word : *words)
        if (files::is_same_file(*path, word))
          return formatted("{} {}: would overwrite the input {}; name another file", option, *path, word);
    for (const auto& [other, other_path] : files.written)
      if (path != other_path && files::is_same_file(*path, *other_path))
        return formatted("{} {}: would overwrite what {} writes; name another file", option, *path, other);
  }
  return {};
}

Report dispatch(const CLI::App& app, const Arguments& args, const Terminal& terminal) {
  for (const std::string& error : {environment_error(), overwriting_error(args.files)})
    if (!error.empty()) return Report::usage(error);
  const std::string& command = app.get_subcommands().front()->get_name();
  if (command == "check") return run_check(args.check, terminal);
  if (command == "explain") return run_explain(args.explain, terminal);
  if (command == "run") return run_run(args.run, terminal);
  if (command == "capture") return run_capture(args.capture, terminal);
  if (command == "compare-caches") return run_compare_caches(args.compare_caches, terminal);
  if (command == "diagnose") return run_diagnose(args.diagnose, terminal);
  if (command == "verify") return run_verify(args.verify, terminal);
  if (command == "bench" && app.get_subcommand("bench")->got_subcommand("compare")) return run_bench_compare(args.bench_compare);
  if (command == "bench") return run_bench(args.bench, terminal);
  if (command == "info") return run_info(args.info, terminal);
  if (command == "completions") return print_completions(app, args.shell);
  return run_rules(args.rule, terminal);
}

/// `quire` alone: the help on stdout, and the exit code of a wrong call, for scripts whose variable was empty.
Report no_command(const CLI::App& app) {
  Report report;
  report.text = app.help();
  report.exit_code = kUsage;
  return report;
}

Report parse_and_dispatch(int argc, char** argv, Terminal& terminal) {
  CLI::App app("Paged attention for LLM inference, and a debugger for attention kernels.");
  Arguments args;
  build(app, args);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    Report report;
    report.text = app.help();
    terminal.json = false;
    return report;
  } catch (const CLI::CallForVersion& version) {
    Report report;
    report.text = std::string(version.what()) + "\n";
    return report;
  } catch (const CLI::ParseError& error) {
    if (argc == 1) return no_command(app);
    return Report::usage(usage_message(app, error, argc, argv), hint_for(app, argc, argv));
  }
  terminal = detect_terminal(args.json);
  return dispatch(app, args, terminal);
}

/// Whether --json was given. Read before parsing, so that a usage error is JSON too.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

int run_main(int argc, char** argv) {
  Terminal terminal = detect_terminal(wants_json(argc, argv));
  Report report;
  try {
    report = parse_and_dispatch(argc, argv, terminal);
  } catch (const std::bad_alloc&) {
    report = Report::failure(Status(Code::out_of_memory, "not enough memory for this problem on this machine"));
  } catch (const std::length_error&) {
    report = Report::failure(Status(Code::out_of_memory, "this problem is larger than this machine can address"));
  } catch (const std::exception& error) {
    report = Report::failure(Status(Code::internal_error, formatted("unexpected {}", error.what())), "please report this");
  }
  return write_report(report, terminal);
}

}  // namespace

int run_command_line(int argc, char** argv) noexcept {
  try {
    return run_main(argc, argv);
  } catch (...) {
    return kInternal;
  }
}

}  // namespace quire::cli
