// With the environment variable ORT_DYNQ_VERBOSE=1, each run of a product names its implementation on stderr.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dynq {

// The variable is read once.
inline bool is_verbose() {
  static const bool value = [] {
    const char* given = std::getenv("ORT_DYNQ_VERBOSE");
    return given != nullptr && std::strcmp(given, "1") == 0;
  }();
  return value;
}

}  // namespace dynq
