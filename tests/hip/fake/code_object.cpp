// SPDX-License-Identifier: Apache-2.0
// See code_object.h.
#include "hip/fake/code_object.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <variant>

namespace quire::fake {
namespace {

template <class T>
T read(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// A MessagePack value: what compilers write, so no floats and no extensions.
struct Value {
  std::uint64_t number = 0;
  std::string text;
  std::vector<Value> items;  ///< items of a list, or keys and values of a map by turns
  const Value* find(const char* key) const {
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (items[i].text == key) return &items[i + 1];
    return nullptr;
  }
  std::uint64_t number_of(const char* key) const {
    const Value* value = find(key);
    return value != nullptr ? value->number : 0;
  }
};

class Reader {
 public:
  explicit Reader(const unsigned char* at) : at_(at) {}

  Value value() {
    const unsigned tag = *at_++;
    Value v;
    if (tag < 0x80 || tag >= 0xE0) return v.number = tag, v;
    if (tag < 0x90) return items(2 * (tag & 0xF));
    if (tag < 0xA0) return items(tag & 0xF);
    if (tag < 0xC0) return text(tag & 0x1F);
    switch (tag) {
      case 0xC2:
      case 0xC3: return v.number = tag & 1, v;
      case 0xCC: return v.number = big_endian(1), v;
      case 0xCD: return v.number = big_endian(2), v;
      case 0xCE: return v.number = big_endian(4), v;
      case 0xCF: return v.number = big_endian(8), v;
      case 0xD9: return text(big_endian(1));
      case 0xDA: return text(big_endian(2));
      case 0xDC: return items(big_endian(2));
      case 0xDE: return items(2 * big_endian(2));
      default: return v;
    }
  }

 private:
  std::uint64_t big_endian(int bytes) {
    std::uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number = number << 8 | *at_++;
    return number;
  }
  Value text(std::uint64_t bytes) {
    Value v;
    v.text.assign(reinterpret_cast<const char*>(at_), bytes);
    at_ += bytes;
    return v;
  }
  Value items(std::uint64_t count) {
    Value v;
    for (std::uint64_t i = 0; i < count; ++i) v.items.push_back(value());
    return v;
  }

  const unsigned char* at_;
};

std::string arch_of(std::uint32_t flags) {
  switch (flags & 0xFF) {  // EF_AMDGPU_MACH
    case 0x3F: return "gfx90a";
    case 0x4C: return "gfx942";
    case 0x4F: return "gfx950";
    case 0x41: return "gfx1100";
    case 0x4E: return "gfx1201";
    default: return "unknown";
  }
}

void read_kernels(const unsigned char* note, CodeObject& to) {
  const Value metadata = Reader(note).value();
  const Value* kernels = metadata.find("amdhsa.kernels");
  if (kernels == nullptr) return;
  for (const Value& kernel : kernels->items) {
    KernelMetadata& m = to.kernels[kernel.find(".name")->text];
    m.threads = static_cast<unsigned>(kernel.number_of(".max_flat_workgroup_size"));
    m.shared_bytes = static_cast<unsigned>(kernel.number_of(".group_segment_fixed_size"));
    m.wave = static_cast<unsigned>(kernel.number_of(".wavefront_size"));
    for (const Value& parameter : kernel.find(".args")->items)
      if (parameter.find(".value_kind")->text == "by_value") m.parameters.push_back(parameter.number_of(".size"));
  }
}

}  // namespace

bool read_code_object(const unsigned char* image, CodeObject& to) {
  constexpr unsigned kMachine = 224, kNoteSegment = 4, kMetadataNote = 32;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF\x02\x01",
                  6) != 0 ||
      read<std::uint16_t>(image + 18) != kMachine)
    return false;
  to.arch = arch_of(read<std::uint32_t>(image + 48));
  const auto table = read<std::uint64_t>(image + 32);
  const auto size = read<std::uint16_t>(image + 54), count = read<std::uint16_t>(image + 56);
  for (unsigned i = 0; i < count; ++i) {
    const unsigned char* segment = image + table + std::size_t{i} * size;
    if (read<std::uint32_t>(segment) != kNoteSegment) continue;
    const auto begin = read<std::uint64_t>(segment + 8), length = read<std::uint64_t>(segment + 32);
    for (std::uint64_t at = begin; at < begin + length;) {
      const auto name = read<std::uint32_t>(image + at), text = read<std::uint32_t>(image + at + 4);
      const std::uint64_t body = at + 12 + (name + 3) / 4 * 4;
      if (read<std::uint32_t>(image + at + 8) == kMetadataNote) read_kernels(image + body, to);
      at = body + (text + 3) / 4 * 4;
    }
  }
  return !to.kernels.empty();
}

}  // namespace quire::fake
