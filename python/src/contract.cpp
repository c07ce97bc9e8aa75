// SPDX-License-Identifier: Apache-2.0
// check(), findings, the rule list and the slot ledger.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "arguments.hpp"
#include "errors.hpp"
#include "ledger.hpp"
#include "types.hpp"

namespace quire_python {
namespace {

using quire::Code;
using quire::Depth;
using quire::Finding;
using quire::Findings;
using quire::Rule;

constexpr const char* kDepths[] = {"metadata", "tables", "contents"};

Depth depth_from(const std::string& text) {
  for (int i = 0; i < 3; ++i)
    if (text == kDepths[i]) return static_cast<Depth>(i);
  throw_error(Code::invalid_argument, "depth: \"" + text + "\" is none of metadata, tables, contents");
}

Findings check(const PyBatch& batch, const PyCache& cache, const PyOptions* options, const std::string& depth,
               const PyLedger* ledger) {
  const Depth how_deep = depth_from(depth);
  const BatchForCall call = batch.to_read(cache);
  const quire::Batch& b = call.views;
  const quire::KVCache& c = cache.checked();
  const quire::Options& o = options_or_default(options);
  const nb::gil_scoped_release unlocked;
  return quire::check(b, c, o, how_deep, ledger != nullptr ? &ledger->ledger : nullptr);
}

std::string to_text(const Findings& findings) {
  if (findings.ok()) return "no findings";
  std::string text;
  for (const Finding& finding : findings.items) text += finding.message + "\n";
  const std::int64_t hidden = findings.total - static_cast<std::int64_t>(findings.items.size());
  if (hidden > 0) return text + "and " + std::to_string(hidden) + " more";
  text.pop_back();
  return text;
}

const Finding& at(const Findings& findings, std::int64_t i) {
  const auto size = static_cast<std::int64_t>(findings.items.size());
  if (i < 0) i += size;
  if (i < 0 || i >= size) throw nb::index_error();
  return findings.items[static_cast<std::size_t>(i)];
}

void bind_findings(nb::module_& m) {
  nb::class_<Finding>(m, "Finding", "One broken rule at one place; str() is the full text.")
      .def_ro("rule", &Finding::rule, "Rule id, e.g. \"Q-T03\".")
      .def_ro("tensor", &Finding::tensor, "Name of the tensor or option.")
      .def_prop_ro(
          "index",
          [](const Finding& f) {
            nb::list list;
            for (std::int64_t i : f.index) list.append(i);
            return nb::tuple(list);
          },
          nb::sig("def index(self) -> tuple[int, ...]"),
          "Where in the tensor, as a tuple; empty if the tensor as a whole is meant.")
      .def_ro("value", &Finding::value, "What was found.")
      .def_ro("expected", &Finding::expected, "What was expected.")
      .def_ro("message", &Finding::message, "The full text: rule, tensor, index, value, expectation.")
      .def("__str__", [](const Finding& f) { return f.message; })
      .def("__repr__", [](const Finding& f) { return "<Finding " + f.message + ">"; });
  nb::class_<Findings>(m, "Findings",
                       "All findings of one check, in rule order: a sequence of Finding. At most 16 per rule are listed; "
                       "`total` counts every one.")
      .def_ro("total", &Findings::total)
      .def_prop_ro("ok", &Findings::ok)
      .def(
          "raise_if_any", [](const Findings& f) { require_ok(f.status()); },
          "Raises ContractError with the first finding's text if there is any.")
      .def("__len__", [](const Findings& f) { return f.items.size(); })
      .def("__getitem__", &at, nb::rv_policy::reference_internal, nb::arg("index"))
      .def(
          "__iter__",
          [](nb::handle self) {
            const Findings& findings = nb::cast<const Findings&>(self);
            nb::list list;
            for (const Finding& finding : findings.items) list.append(nb::cast(finding, nb::rv_policy::copy));
            return nb::iter(list);
          },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Finding]"))
      .def("__str__", &to_text)
      .def("__repr__", [](const Findings& f) { return "<Findings total=" + std::to_string(f.total) + ">"; });
}

void bind_rules(nb::module_& m) {
  nb::class_<Rule>(m, "Rule", "A rule of the contract as documented.")
      .def_ro("id", &Rule::id)
      .def_prop_ro("depth", [](const Rule& r) { return std::string(kDepths[static_cast<int>(r.depth)]); })
      .def_ro("statement", &Rule::statement)
      .def_ro("why", &Rule::why)
      .def_ro("example", &Rule::example)
      .def("__repr__", [](const Rule& r) { return "<Rule " + std::string(r.id) + ": " + std::string(r.statement) + ">"; });
  m.def(
      "rules",
      [] {
        const auto rules = quire::rules();
        return std::vector<Rule>(rules.begin(), rules.end());
      },
      "Every rule of the contract, in order.");
}

void move(PyLedger& ledger, nb::handle src, nb::handle dst, nb::handle request_ids, nb::handle positions) {
  const std::vector<std::int64_t> from = index_list(src, "src"), to = index_list(dst, "dst");
  std::vector<quire::WriteTag> tags(request_ids.is_none() && positions.is_none() ? 0 : to.size());
  const auto fill = [&](nb::handle values, const char* name, std::int64_t quire::WriteTag::* member) {
    if (values.is_none()) return;
    const std::vector<std::int64_t> list = index_list(values, name);
    if (list.size() != to.size())
      throw_error(Code::invalid_argument, std::string(name) + ": " + std::to_string(list.size()) + " entries, expected " +
                                              std::to_string(to.size()) + " as dst");
    for (std::size_t i = 0; i < list.size(); ++i) tags[i].*member = list[i];
  };
  fill(request_ids, "request_ids", &quire::WriteTag::request);
  fill(positions, "positions", &quire::WriteTag::position);
  require_ok(ledger.ledger.move(from, to, tags));
}

void remember(PyLedger& ledger, const PyCache& cache, nb::handle slots) {
  const std::vector<std::int64_t> list = index_list(slots, "slots");
  const quire::KVCache& c = cache.checked();
  quire::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = ledger.ledger.remember(c, list);
  }
  require_ok(status);
}

constexpr const char* kLedgerDoc =
    R"(A per-slot record of who wrote it and when: fed by append(), consulted by check().

With a ledger, check() also finds reads of slots never written (Q-L01), written for another request (Q-L02), for another
position (Q-L03), or recycled since (Q-L04). Host memory, about 24 bytes a slot. Not thread-safe.

digests=True: the ledger also keeps 64 bits of K and 64 of V of each slot, scales of the slot included, taken after each append().
check() at depth "contents" then finds slots that changed since, or were not moved as move() said (Q-L07). 24 bytes a slot more;
append() and check() read the slots once more, and wait for a GPU.)";

void bind_entry(nb::module_& m) {
  using Entry = quire::SlotLedger::Entry;
  nb::class_<Entry>(m, "LedgerEntry", "Who wrote a slot last; request -1 means never written.")
      .def_ro("request", &Entry::request)
      .def_ro("position", &Entry::position)
      .def_ro("step", &Entry::step)
      .def_ro("recycled", &Entry::recycled)
      .def("__repr__", [](const Entry& e) {
        return "<LedgerEntry request=" + std::to_string(e.request) + " position=" + std::to_string(e.position) +
               " step=" + std::to_string(e.step) + (e.recycled ? " recycled>" : ">");
      });
}

void bind_ledger(nb::module_& m) {
  nb::class_<PyLedger> type(m, "SlotLedger", kLedgerDoc);
  def_init(type,
           {"SlotLedger", {"num_pages", "page_size"}, {{"num_pages", "int"}, {"page_size", "int"}, {"digests", "bool = False"}}});
  type.def(
          "begin_step", [](PyLedger& l, std::int64_t step) { l.ledger.begin_step(step); }, nb::arg("step"),
          "Starts step `step`; later writes carry it. Steps only grow.")
      .def(
          "record",
          [](PyLedger& l, std::int64_t slot, std::int64_t request, std::int64_t position) {
            l.ledger.record(slot, {.request = request, .position = position});
          },
          nb::arg("slot"), nb::arg("request"), nb::arg("position"),
          "Slot was written for this token in the current step. Its bytes are unknown until remember().")
      .def("move", &move, nb::arg("src"), nb::arg("dst"), nb::kw_only(), nb::arg("request_ids") = nb::none(),
           nb::arg("positions") = nb::none(),
           nb::sig("def move(self, src: numpy.typing.ArrayLike, dst: numpy.typing.ArrayLike, *, "
                   "request_ids: numpy.typing.ArrayLike | None = None, positions: numpy.typing.ArrayLike | None = None) -> None"),
           R"(Tokens were moved or copied: slot dst[i] now has what slot src[i] had. Page p is the slots p * page_size and on.

Writer, position and digest follow; request_ids and positions, where given, replace the source's. All of src are read before any of
dst is written. A move that was not carried out, or otherwise, is then found by check() of a ledger with digests.)")
      .def("remember", &remember, nb::arg("cache"), nb::arg("slots"),
           nb::sig("def remember(self, cache: KVCache, slots: numpy.typing.ArrayLike) -> None"),
           "Takes digests of what the cache holds in these slots now, for writers other than append(). Needs digests=True.")
      .def(
          "share", [](PyLedger& l, std::int64_t page, std::int64_t request) { l.ledger.share(page, request); }, nb::arg("page"),
          nb::arg("request"), "From now on `request` may read what others wrote in this page.")
      .def(
          "recycle", [](PyLedger& l, std::int64_t page) { l.ledger.recycle(page); }, nb::arg("page"),
          "The page went back to the pool: everything in it is stale until written again.")
      .def(
          "entry",
          [](const PyLedger& l, std::int64_t slot) {
            if (slot < 0 || slot >= l.ledger.num_pages() * l.ledger.page_size())
              throw_error(Code::invalid_argument, "slot: " + std::to_string(slot) + " is outside the ledger");
            return l.ledger.entry(slot);
          },
          nb::arg("slot"))
      .def(
          "shared_with",
          [](const PyLedger& l, std::int64_t page, std::int64_t request) { return l.ledger.shared_with(page, request); },
          nb::arg("page"), nb::arg("request"))
      .def_prop_ro("num_pages", [](const PyLedger& l) { return l.ledger.num_pages(); })
      .def_prop_ro("page_size", [](const PyLedger& l) { return l.ledger.page_size(); })
      .def_prop_ro("has_digests", [](const PyLedger& l) { return l.ledger.has_digests(); })
      .def_prop_ro(
          "slots_written", [](const PyLedger& l) { return l.ledger.slots_written(); }, "Writes recorded so far.")
      .def_prop_ro(
          "slots_read", [](const PyLedger& l) { return l.ledger.slots_read(); }, "Slots check() looked up so far.")
      .def("__repr__", [](const PyLedger& l) {
        return "<SlotLedger " + std::to_string(l.ledger.num_pages()) + " pages of " + std::to_string(l.ledger.page_size()) +
               " tokens, " + std::to_string(l.ledger.slots_written()) + " slots written>";
      });
}

}  // namespace

PyLedger::PyLedger(const Arguments& given)
    : ledger((given.required("num_pages"), given.required("page_size"),
              unwrap(quire::SlotLedger::create(given.integer("num_pages").value_or(-1), given.integer("page_size").value_or(-1),
                                               given.flag("digests", false))))) {}

void bind_contract(nb::module_& m) {
  bind_findings(m);
  bind_rules(m);
  bind_entry(m);
  bind_ledger(m);
  m.def(
      "check", &check, nb::arg("batch"), nb::arg("cache"), nb::arg("options") = nb::none(), nb::arg("depth") = "contents",
      nb::arg("ledger") = nb::none(),
      nb::sig(
          "def check(batch: Batch, cache: KVCache, options: Options | None = None, "
          "depth: typing.Literal['metadata', 'tables', 'contents'] = 'contents', ledger: SlotLedger | None = None) -> Findings"),
      R"(Applies every rule up to `depth` and returns all findings; never raises for a broken rule, writes nothing.

depth: "metadata" (dtypes, shapes, strides, options), "tables" (index tensors and scales as well), "contents" (every visible
query, key and value element is finite as well, and no request sees a slot of the cache twice). A ledger, if given, is consulted
from "tables" on, and its digests at "contents". The GIL is released.)");
}

}  // namespace quire_python
