// SPDX-License-Identifier: Apache-2.0
// Captures: a batch as a .safetensors file (capture.md).
//
// Reading checks the container and the names, not the contract: a capture of a broken batch must reach check(). Everything is
// copied into 64-byte aligned memory that the case owns. Writing is canonical: equal cases give equal files.
#include <algorithm>

#include "batch/caught.h"
#include "batch/fields.h"
#include "capture/file_io.h"
#include "capture/fill.h"
#include "capture/problem_note.h"
#include "capture/safetensors.h"
#include "files/atomic_file.h"
#include "quire/tools/capture.hpp"
#include "text/formatted.h"
#include "text/parse.h"

namespace quire {
namespace {

using capture::ByteSource;
using capture::Entry;
using capture::Header;
using capture::Metadata;
using text::quote;

constexpr std::string_view kFormatVersion = "1";
constexpr std::string_view kDTypePrefix = "dtype.";
/// Most bytes read from a pipe: 1 GiB. The bytes are held in memory beside the tensors made from them; a larger limit would let a
/// pipe exhaust memory.
constexpr std::uint64_t kMaxStreamBytes = std::uint64_t{1} << 30;

/// Most bytes of a tensor that repeat others: 1 GiB. A file is dense, so a broadcast tensor of a few kB could fill a disk; a
/// smaller limit would refuse broadcasts that a disk holds easily.
constexpr std::int64_t kMostRepeatedBytes = std::int64_t{1} << 30;

/// Member of a Case that holds a tensor of the file.
struct Place {
  std::string_view name;
  bool required;
  Tensor& (*in)(Case&);
};
#define QUIRE_PLACE(part, member, name, stored_as, kind, axis, presence, access) \
  {stored_as, batch::Presence::presence == batch::Presence::required, [](Case& c) -> Tensor& { return c.part.member; }},
constexpr Place kPlaces[] = {
#define QUIRE_BATCH_TENSOR(...) QUIRE_PLACE(batch, __VA_ARGS__)
#define QUIRE_CACHE_TENSOR(...) QUIRE_PLACE(cache, __VA_ARGS__)
#define QUIRE_OPTIONS_TENSOR(...) QUIRE_PLACE(options, __VA_ARGS__)
#include "batch/fields.inc"
    {"observed", false, [](Case& c) -> Tensor& { return c.observed; }},
    {"observed_lse", false, [](Case& c) -> Tensor& { return c.observed_lse; }},
};
#undef QUIRE_PLACE
constexpr std::string_view kReservedKeys[] = {
    "quire_capture",
    "quire_version",
#define QUIRE_BATCH_CHOICE(member) #member,
#define QUIRE_CACHE_CHOICE(member) #member,
#define QUIRE_OPTIONS_CHOICE(member) #member,
#include "batch/fields.inc"
};

constexpr std::string_view kBits = "tree_mask";

const Place* find_place(std::string_view name) {
  const auto* place = std::find_if(std::begin(kPlaces), std::end(kPlaces), [&](const Place& p) { return p.name == name; });
  return place == std::end(kPlaces) ? nullptr : place;
}

std::array<std::string_view, std::size(kPlaces)> place_names() {
  std::array<std::string_view, std::size(kPlaces)> names;
  std::transform(std::begin(kPlaces), std::end(kPlaces), names.begin(), [](const Place& p) { return p.name; });
  return names;
}

bool is_reserved(std::string_view key) {
  return key.starts_with(kDTypePrefix) ||
         std::find(std::begin(kReservedKeys), std::end(kReservedKeys), key) != std::end(kReservedKeys);
}

Status broken(std::string text) { return {Code::parse_error, "capture: " + std::move(text)}; }

Status unknown_tensor(std::string_view name) {
  const auto names = place_names();
  const std::string_view guess = text::nearest(name, names);
  return broken(formatted("unknown tensor {}{}; expected names: {}", quote(name),
                          guess.empty() ? "" : formatted(", did you mean {}?", quote(guess)), fmt::join(names, " ")));
}

/// The type of an entry; a U8 tensor holds the fp8 format that metadata key dtype.NAME gives.
Result<DType> dtype_of(const Entry& entry, const Metadata& metadata) {
  const DType coded = capture::dtype_of_code(entry.code).value_or(DType::none);
  const std::string key = formatted("{}{}", kDTypePrefix, entry.name);
  const auto given = metadata.find(key);
  if (given == metadata.end()) {
    if (coded != DType::none) return coded;
    return broken(formatted("tensor {}: dtype U8 needs metadata key {} = an fp8 format, fp8_ds_mla, nvfp4, mxfp4 or fp8_e8m0",
                            quote(entry.name), quote(key)));
  }
  const DType named = dtype_from_name(given->second).value_or(DType::none);
  if (coded != DType::none && coded != named) {
    return broken(
        formatted("metadata {}={}: the file stores {}, which is {}", quote(key), quote(given->second), entry.code, name(coded)));
  }
  if (entry.name == kBits && named == DType::u8) return named;
  if (!is_fp8(named) && !is_four_bit(named) && named != DType::fp8_e8m0 && named != DType::fp8_ds_mla && coded == DType::none) {
    return broken(formatted("metadata {}={}: expected an fp8 type, fp8_ds_mla, nvfp4 or mxfp4 for a U8 tensor", quote(key),
                            quote(given->second)));
  }
  return named;
}

Status read_tensor(const ByteSource& source, const Header& header, const Entry& entry, Case& c) {
  const Place* place = find_place(entry.name);
  if (place == nullptr) return unknown_tensor(entry.name);
  const Result<DType> dtype = dtype_of(entry, header.metadata);
  if (!dtype.ok()) return dtype.status();
  const std::size_t bytes = static_cast<std::size_t>(entry.end - entry.begin);
  // Rows of fp8_ds_mla are read as words (Q-R02), and a file may begin them anywhere: these are copied.
  std::shared_ptr<std::byte[]> mapped;
  if (dtype.value() != DType::fp8_ds_mla) mapped = source.map(header.data_start + entry.begin, bytes);
  if (mapped) {
    place->in(c) = Tensor::from_shape(mapped.get(), dtype.value(), entry.shape, entry.rank);
    c.storage.push_back(std::move(mapped));
    return {};
  }
  std::byte* data = c.allocate(bytes);
  if (data == nullptr) return broken(formatted("tensor {}: out of memory for {} bytes", quote(entry.name), bytes));
  place->in(c) = Tensor::from_shape(data, dtype.value(), entry.shape, entry.rank);
  return source.read(header.data_start + entry.begin, {data, bytes});
}

Status bad_option(std::string_view key, std::string_view text, std::string_view expected) {
  return broken(formatted("metadata {}={}: expected {}", quote(key), quote(text), expected));
}

/// Reads a choice, as text_of() writes it; what was expected of one that is none of its kind.
std::string_view read_choice(const std::string& text, std::optional<float>& to) {
  return (to = text::parse_float(text)) ? "" : "a number";
}
std::string_view read_choice(const std::string& text, std::optional<std::int64_t>& to) {
  return (to = text::parse_int(text)) ? "" : "an integer";
}
std::string_view read_choice(const std::string& text, bool& to) {
  to = text == "1";
  return to || text == "0" ? "" : "0 or 1";
}
std::string_view read_choice(const std::string& text, CacheLayout& to) {
  const auto known = layout_from_name(text);
  to = known.value_or(to);
  return known ? "" : "nhd, hnd or packed";
}
std::string_view read_choice(const std::string& text, Padding& to) {
  const auto known = padding_from_name(text);
  to = known.value_or(to);
  return known ? "" : "refused, left or zero";
}

std::string text_of(const std::optional<float>& choice) { return text::float_text(*choice); }
std::string text_of(const std::optional<std::int64_t>& choice) { return formatted("{}", *choice); }
std::string text_of(bool choice) { return choice ? "1" : "0"; }
template <typename Named>
std::string text_of(Named choice) {
  return std::string(name(choice));
}

Status read_options(const Metadata& metadata, Case& c) {
  if (const auto it = metadata.find("quire_capture"); it != metadata.end() && it->second != kFormatVersion) {
    return bad_option("quire_capture", it->second, "format version 1, the only one this build reads");
  }
  if (!metadata.contains("layout")) return broken("metadata key \"layout\" is missing; expected nhd, hnd or packed");
  Status status;
  const auto read = [&](std::string_view key, auto& to) {
    const auto it = metadata.find(std::string(key));
    if (it == metadata.end() || !status.ok()) return;
    if (const std::string_view expected = read_choice(it->second, to); !expected.empty())
      status = bad_option(key, it->second, expected);
  };
  batch::for_each_choice(read, c);
  return status;
}

/// Keys that are not options are the case's notes, unless they look like a slip of the pen: an option that is silently not
/// applied would be a wrong answer.
Status read_notes(const Header& header, Case& c) {
  for (const auto& [key, value] : header.metadata) {
    if (key.starts_with(kDTypePrefix)) {
      const std::string_view tensor = std::string_view(key).substr(kDTypePrefix.size());
      const bool exists =
          std::any_of(header.entries.begin(), header.entries.end(), [&](const Entry& e) { return e.name == tensor; });
      if (!exists) return broken(formatted("metadata key {}: the file has no such tensor", quote(key)));
    } else if (!is_reserved(key)) {
      if (const auto guess = text::nearest(key, kReservedKeys); !guess.empty()) {
        return broken(formatted("unknown metadata key {}: did you mean {}?", quote(key), quote(guess)));
      }
      c.notes[key] = value;
    }
  }
  return {};
}

/// Shape of the batch's output: the query's rows and heads, V's head_dim. If V has more than kMostWider times the query's dims,
/// the output gets the query's shape, which the contract refuses: a small file cannot ask for much memory.
std::array<std::int64_t, Tensor::kMaxRank> output_shape(const Case& c) {
  constexpr std::int64_t kMostWider = 64;
  std::array<std::int64_t, Tensor::kMaxRank> shape = c.batch.query.shape;
  if (c.batch.query.rank != 3 || c.cache.v.rank != 4 || c.cache.k.rank < 4) return shape;
  if (v_head_dim(c.cache) / kMostWider <= shape[2] && shape[2] > 0) shape[2] = v_head_dim(c.cache);
  return shape;
}

/// Adds an output of NaN to a capture that holds only the observed output of another kernel.
Status supply_output(Case& c) {
  const Tensor& query = c.batch.query;
  if (c.batch.output.present() || !is_floating(query.dtype)) return {};
  const DType own = query.dtype == DType::fp8_e4m3fn ? DType::bf16 : query.dtype;
  const DType dtype = c.batch.output_scale.present() ? DType::fp8_e4m3fn : own;
  c.batch.output = Tensor::from_shape(nullptr, dtype, output_shape(c), query.rank);
  c.batch.output.data = c.allocate(static_cast<std::size_t>(c.batch.output.num_elements() * itemsize(dtype)));
  if (c.batch.output.data == nullptr) return broken("out of memory for output");
  capture::fill_value(c.batch.output, capture::quiet_nan());
  return {};
}

/// A stream says how long it should be only by its header. One byte more is read, so that one which goes on is noticed; a broken
/// header is left to read_header(), which finds the same and says where.
Status fill_from_header(capture::FileSource& source) {
  if (Status s = source.fill(capture::kLengthBytes); !s.ok()) return s;
  if (source.size() < capture::kLengthBytes) return {};
  std::byte prefix[capture::kLengthBytes];
  if (Status s = source.read(0, prefix); !s.ok()) return s;
  const Result<std::uint64_t> length = capture::parse_header_length(prefix, ~std::uint64_t{0});
  if (!length.ok()) return length.status();
  const std::uint64_t data_start = capture::kLengthBytes + length.value();
  if (Status s = source.fill(data_start); !s.ok()) return s;
  if (source.size() < data_start) return {};
  std::string json(static_cast<std::size_t>(length.value()), '\0');
  if (Status s = source.read(capture::kLengthBytes, std::as_writable_bytes(std::span(json))); !s.ok()) return s;
  const Result<std::uint64_t> announced = capture::announced_bytes(json);
  if (!announced.ok()) return {};
  if (announced.value() > kMaxStreamBytes)
    return broken(formatted("a pipe or device with {} data bytes: expected at most {}; save it to a file first",
                            announced.value(), kMaxStreamBytes));
  return source.fill(data_start + announced.value() + 1);
}

Result<Header> read_header(const ByteSource& source) {
  std::byte prefix[capture::kLengthBytes];
  const std::size_t available = static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), capture::kLengthBytes));
  if (Status s = source.read(0, {prefix, available}); !s.ok()) return s;
  const Result<std::uint64_t> length = capture::parse_header_length({prefix, available}, source.size());
  if (!length.ok()) return length.status();
  std::string json(static_cast<std::size_t>(length.value()), '\0');
  if (Status s = source.read(capture::kLengthBytes, std::as_writable_bytes(std::span(json))); !s.ok()) return s;
  return capture::parse_header(json, source.size() - capture::kLengthBytes - length.value());
}

Result<Case> read_case(const ByteSource& source) {
  Result<Header> header = read_header(source);
  if (!header.ok()) return header.status();
  Case c;
  if (Status s = read_options(header->metadata, c); !s.ok()) return s;
  if (Status s = read_notes(header.value(), c); !s.ok()) return s;
  for (const Entry& entry : header->entries)
    if (find_place(entry.name) == nullptr) return unknown_tensor(entry.name);
  for (const Entry& entry : header->entries)
    if (Status s = read_tensor(source, header.value(), entry, c); !s.ok()) return s;
  for (const Place& place : kPlaces) {
    if (place.required && !place.in(c).present()) return broken(formatted("tensor {} is missing", quote(place.name)));
  }
  if (Status s = supply_output(c); !s.ok()) return s;
  capture::settle_problem_note(c);
  return c;
}

Status with_path(const std::string& path, const Status& s) {
  if (s.code() == Code::io_error) return s;
  return {s.code(), formatted("{}: {}", path, s.message())};
}

/// A tensor that goes into the file, and where.
struct Outgoing {
  Tensor tensor;
  Entry entry;
};

Status refuse(std::string_view tensor, std::string_view why) {
  return {Code::invalid_argument, formatted("capture: tensor {}: {}", quote(tensor), why)};
}

/// Number of elements of a tensor at addresses of their own: axes with a stride of 0 repeat the same elements.
std::int64_t distinct_elements(const Tensor& t) {
  std::int64_t count = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) count *= t.stride[i] == 0 ? 1 : t.shape[i];
  return count;
}

Result<Outgoing> outgoing(std::string_view tensor_name, const Tensor& t) {
  // Bits are bytes of any value, and a BOOL of another value than 0 and 1 is none.
  const std::string_view code = tensor_name == kBits && t.dtype == DType::u8 ? "U8" : capture::code_of(t.dtype);
  if (code.empty()) return refuse(tensor_name, formatted("type {} cannot be stored", name(t.dtype)));
  if (t.memory != Memory::cpu) return refuse(tensor_name, "it is in device memory; copy it to the host first");
  if (t.rank > Tensor::kMaxRank) return refuse(tensor_name, formatted("rank {}: expected at most {}", t.rank, Tensor::kMaxRank));
  const auto bytes = capture::checked_bytes(t.shape, t.rank, itemsize(t.dtype));
  if (!bytes) return refuse(tensor_name, "a dimension is negative or the size exceeds 2^63 bytes");
  if (*bytes > 0 && t.data == nullptr) return refuse(tensor_name, "data is null");
  const std::int64_t distinct = *bytes == 0 ? 0 : distinct_elements(t) * itemsize(t.dtype);
  if (*bytes - distinct > kMostRepeatedBytes)
    return refuse(tensor_name,
                  formatted("an axis with stride 0 repeats {} bytes of memory to {} bytes of file, expected at most "
                            "{} more; give a tensor with only the pages that block_table names, and number them anew",
                            distinct, *bytes, kMostRepeatedBytes));
  Outgoing out;
  out.tensor = t;
  out.entry = {std::string(tensor_name), std::string(code), t.shape, t.rank, 0, static_cast<std::uint64_t>(*bytes)};
  return out;
}

/// Wide elements first, so that every tensor starts aligned to its element size; then the order of kPlaces.
Result<std::vector<Outgoing>> collect(Case& c) {
  std::vector<Outgoing> all;
  std::uint64_t offset = 0;
  for (const std::int64_t size : {8, 4, 2, 1}) {
    for (const Place& place : kPlaces) {
      const Tensor& t = place.in(c);
      if (!t.present() && place.required) return refuse(place.name, "it is absent, but every capture needs it");
      if (!t.present()) continue;
      Result<Outgoing> one = outgoing(place.name, t);
      if (!one.ok()) return one.status();
      if (itemsize(t.dtype) != size) continue;
      Entry& entry = one->entry;
      if (entry.end > 0x7FFFFFFFFFFFFFFFu - offset) return refuse(place.name, "the capture exceeds 2^63 bytes");
      entry.begin = offset;
      offset = entry.end += offset;
      all.push_back(std::move(one).value());
    }
  }
  return all;
}

Result<Metadata> metadata_of(const Case& c, const std::vector<Outgoing>& tensors) {
  Metadata m;
  for (const auto& [key, value] : c.notes) {
    if (is_reserved(key) || !text::nearest(key, kReservedKeys).empty()) {
      return Status(Code::invalid_argument,
                    formatted("capture: note {}: the key is reserved, or too close to a reserved one", quote(key)));
    }
    m[key] = value;
  }
  if (!layout_from_name(name(c.cache.layout)))
    return Status(Code::invalid_argument, "capture: cache layout is not nhd, hnd or packed");
  m["quire_capture"] = kFormatVersion;
  m["quire_version"] = QUIRE_VERSION;
  const auto write = [&](std::string_view key, const auto& choice, const auto& usual) {
    if (choice != usual || key == "layout") m[std::string(key)] = text_of(choice);
  };
  batch::for_each_choice(write, c, Case());
  for (const Outgoing& one : tensors) {
    if (one.entry.code == "U8") m[formatted("{}{}", kDTypePrefix, one.entry.name)] = name(one.tensor.dtype);
  }
  return m;
}

/// Visits the elements of a strided tensor in row-major order, one innermost row at a time, through a bounded buffer.
Status write_strided(files::AtomicFile& file, const Tensor& t) {
  const std::size_t size = static_cast<std::size_t>(itemsize(t.dtype));
  const std::size_t kBuffer = std::size_t{1} << 20;
  std::vector<std::byte> buffer;
  buffer.reserve(kBuffer);
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  const std::int64_t count = t.num_elements();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (int i = 0; i < t.rank; ++i) offset += index[static_cast<std::size_t>(i)] * t.stride[static_cast<std::size_t>(i)];
    const std::byte* element = static_cast<const std::byte*>(t.data) + offset * static_cast<std::int64_t>(size);
    buffer.insert(buffer.end(), element, element + size);
    if (buffer.size() >= kBuffer) {
      if (Status s = file.write(buffer); !s.ok()) return s;
      buffer.clear();
    }
    for (int i = t.rank - 1; i >= 0 && ++index[static_cast<std::size_t>(i)] == t.shape[static_cast<std::size_t>(i)]; --i)
      index[static_cast<std::size_t>(i)] = 0;
  }
  return file.write(buffer);
}

Status write_tensor(files::AtomicFile& file, const Outgoing& one) {
  const std::size_t bytes = static_cast<std::size_t>(one.entry.end - one.entry.begin);
  if (bytes == 0) return {};
  if (one.tensor.is_contiguous()) return file.write({static_cast<const std::byte*>(one.tensor.data), bytes});
  return write_strided(file, one.tensor);
}

/// Refuses to write an observed output that diagnose() would refuse.
Status check_observed(const Case& c) {
  const Tensor &o = c.observed, &q = c.batch.query, &l = c.observed_lse;
  const auto shape = output_shape(c);
  const auto like_output = [&](const Tensor& t, int rank) {
    return t.rank == rank && std::equal(t.shape.begin(), t.shape.begin() + rank, shape.begin());
  };
  if (o.present() && (!is_floating(o.dtype) || !like_output(o, q.rank)))
    return refuse("observed", formatted("{}, expected a floating type and the shape of an output, [{}]", to_string(o),
                                        fmt::join(shape.begin(), shape.begin() + std::max(0, q.rank), ", ")));
  if (l.present() && q.rank >= 2 && (l.dtype != DType::f32 || !like_output(l, 2)))
    return refuse("observed_lse", formatted("{}, expected f32 [{}, {}]", to_string(l), q.shape[0], q.shape[1]));
  return {};
}

Status write_case(const std::string& path, Case views) {
  Result<std::vector<Outgoing>> tensors = collect(views);
  if (!tensors.ok()) return tensors.status();
  if (Status s = check_observed(views); !s.ok()) return s;
  const Result<Metadata> metadata = metadata_of(views, tensors.value());
  if (!metadata.ok()) return metadata.status();
  std::vector<Entry> entries;
  for (const Outgoing& one : tensors.value()) entries.push_back(one.entry);
  const Result<std::string> header = capture::format_header(entries, metadata.value());
  if (!header.ok()) return header.status();
  files::AtomicFile file;
  if (Status s = file.open(path, files::kUserData); !s.ok()) return s;
  if (Status s = file.write(std::as_bytes(std::span(header.value()))); !s.ok()) return s;
  for (const Outgoing& one : tensors.value())
    if (Status s = write_tensor(file, one); !s.ok()) return s;
  return file.commit();
}

}  // namespace

Result<Case> parse_capture(std::span<const std::byte> bytes) {
  try {
    return read_case(capture::MemorySource(bytes));
  } catch (...) {
    return batch::caught("parse_capture");
  }
}

namespace {

Result<Case> read_file(const std::string& path, bool map) {
  try {
    capture::FileSource source;
    if (Status s = source.open(path); !s.ok()) return s;
    if (map) source.allow_mapping();
    if (source.is_stream())
      if (Status s = fill_from_header(source); !s.ok()) return with_path(path, s);
    Result<Case> c = read_case(source);
    if (!c.ok()) return with_path(path, c.status());
    return c;
  } catch (...) {
    return batch::caught(path);
  }
}

}  // namespace

Result<Case> read_capture(const std::string& path) { return read_file(path, /*map=*/false); }
Result<Case> map_capture(const std::string& path) { return read_file(path, /*map=*/true); }

Status write_capture(const std::string& path, const Case& c) {
  try {
    return write_case(path, c);
  } catch (...) {
    return batch::caught(path);
  }
}

}  // namespace quire
