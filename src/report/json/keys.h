// SPDX-License-Identifier: Apache-2.0
// The keys of a struct, listed once for writing and reading. A function keys_of(keys, value) in the namespace of Writer or of the
// struct, where argument-dependent lookup finds the function, lists pairs of key and member:
//
//   keys("seconds", f.seconds, "high", f.high)   A document must have these keys.
//   keys.later("blocks", f.blocks)               Documents of earlier versions lack the key: the member keeps its value.
//   keys.says("version", QUIRE_VERSION)          A fact that is written and not read.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/tools/verify.hpp"
#include "report/json/json.h"

namespace quire::report {

/// T or const T: keys_of() is called with what is read and with what is written.
template <typename Given, typename T>
concept Of = std::same_as<std::remove_const_t<Given>, T>;

/// A value that JSON holds as it is; not an enumerator, which is written by its name, and not a struct with keys.
template <typename T>
concept Plain = !std::is_enum_v<T> && std::constructible_from<Json, T>;

class Writer {
 public:
  template <typename T, typename... More>
  void operator()(const char* key, const T& value, const More&... more) {
    json_[key] = written(value);
    if constexpr (sizeof...(more) > 0) (*this)(more...);
  }
  template <typename... Pairs>
  void later(const Pairs&... pairs) {
    (*this)(pairs...);
  }
  template <typename T>
  void says(const char* key, const T& fact) {
    json_[key] = fact;
  }

  template <typename T>
  static Json written(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      return number(value);
    } else if constexpr (Plain<T>) {
      return value;
    } else if constexpr (std::is_enum_v<T>) {
      return name(value);
    } else {
      Writer writer;
      keys_of(writer, value);
      return std::move(writer.json_);
    }
  }
  template <typename T>
    requires(!Plain<T>)
  static Json written(const std::vector<T>& list) {
    Json json = Json::array();
    for (const T& value : list) json.push_back(written(value));
    return json;
  }

  const Json& json() const { return json_; }

 private:
  Json json_ = Json::object();
};

class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <typename T, typename... More>
  void operator()(const char* key, T& value, More&&... more) {
    read(json_.at(key), value);
    if constexpr (sizeof...(more) > 0) (*this)(std::forward<More>(more)...);
  }
  template <typename T, typename... More>
  void later(const char* key, T& value, More&&... more) {
    if (const auto at = json_.find(key); at != json_.end() && !at->is_null()) read(*at, value);
    if constexpr (sizeof...(more) > 0) later(std::forward<More>(more)...);
  }
  /// A fact that every document says is not read.
  template <typename T>
  void says(const char*, const T&) {}

  template <typename T>
  static void read(const Json& json, T& value) {
    if constexpr (Plain<T>) {
      json.get_to(value);
    } else if constexpr (std::is_enum_v<T>) {
      value = named<T>(json.get<std::string>());
    } else {
      Reader reader(json);
      keys_of(reader, value);
    }
  }
  template <typename T>
    requires(!Plain<T>)
  static void read(const Json& json, std::vector<T>& list) {
    for (const Json& item : json) read(item, list.emplace_back());
  }

 private:
  /// The enumerator of a name; the first one if there is none of this name.
  template <typename Enum>
  static Enum named(const std::string& text) {
    for (int i = 0; !name(static_cast<Enum>(i)).empty(); ++i)
      if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
    return Enum{};
  }

  const Json& json_;
};

/// Counts of a target, as a soak's report and its state hold them.
template <typename Keys, Of<SoakCounts> Counts>
void keys_of(Keys& keys, Counts& c) {
  keys("target", c.target, "cases", c.cases, "passed", c.passed, "failed", c.failed, "refused", c.refused);
  keys("num_elements", c.num_elements, "num_compared", c.num_compared, "worst_ratio", c.worst_ratio);
}

}  // namespace quire::report
