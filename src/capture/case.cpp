// The memory behind a case.
#include <new>

#include "quire/capture.hpp"

namespace quire {

std::byte* Case::allocate(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  // Exactly as many bytes as asked for, so that AddressSanitizer sees the first byte read or written past a tensor.
  auto* data = static_cast<std::byte*>(::operator new[](bytes > 0 ? bytes : 1, kAlignment, std::nothrow));
  if (data == nullptr) return nullptr;
  storage.emplace_back(data, [](std::byte* p) { ::operator delete[](p, kAlignment); });
  return data;
}

}  // namespace quire
