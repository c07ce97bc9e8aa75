// SPDX-License-Identifier: Apache-2.0
// Completion scripts are made from the parser itself, so that no option can be missing from them.
#include <CLI/CLI.hpp>

#include "commands.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// bash; zsh reads the same script by way of bashcompinit.
std::string bash_script(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    cases += formatted("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(options_of(*command), " "));
  }
  return formatted(
      "_quire() {{\n"
      "  local current=\"${{COMP_WORDS[COMP_CWORD]}}\" words\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} {}\" -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n"
      "{}"
      "  esac\n"
      "  case \"$current\" in\n"
      "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;\n"
      "    *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
      "  esac\n"
      "}}\n"
      "complete -o filenames -F _quire quire\n",
      commands, fmt::join(options_of(app), " "), cases);
}

/// A description inside single quotes.
std::string quoted(std::string text) {
  std::erase(text, '\'');
  return "'" + text + "'";
}

std::string fish_script(const CLI::App& app) {
  std::string script;
  for (const CLI::App* command : app.get_subcommands({})) {
    script += formatted("complete -c quire -n __fish_use_subcommand -a {} -d {}\n", command->get_name(),
                        quoted(command->get_description()));
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames())
        script += formatted("complete -c quire -n '__fish_seen_subcommand_from {}' -l {} -d {}\n", command->get_name(), name,
                            quoted(option->get_description()));
  }
  return script;
}

}  // namespace

Report print_completions(const CLI::App& app, const std::string& shell) {
  Report report;
  report.text = shell == "fish" ? fish_script(app) : bash_script(app);
  if (shell == "zsh") report.text = "autoload -U +X bashcompinit && bashcompinit\n" + report.text;
  report.json = {{"schema", "quire.completions/1"}, {"ok", true}, {"exit_code", kOk}, {"shell", shell}, {"script", report.text}};
  return report;
}

}  // namespace quire::cli
