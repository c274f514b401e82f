// std::__throw_bad_array_new_length: libstdc++ has it only since GCC 11, and GCC 11 and newer call it in every
// std::vector. With this definition the library runs with the libstdc++ of GCC 8, whichever compiler built it.
// (Compilers for manylinux link a copy of it, too.)
#include <new>

#if defined(__GLIBCXX__) && !defined(_WIN32)  // for Windows, libstdc++ is linked statically
// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-std-namespace-modification)
namespace std {
[[noreturn]] void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
// NOLINTEND(bugprone-reserved-identifier,bugprone-std-namespace-modification)
#endif
