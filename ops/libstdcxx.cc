// What libstdc++ has since GCC 11 only, and every std::vector compiled by it wants: with a copy of its own the library
// runs on every Linux of the last decade, whichever compiler built it. (Those for manylinux link such a copy, too.)
#include <new>

#ifdef __GLIBCXX__
// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-std-namespace-modification)
namespace std {
[[noreturn]] void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
// NOLINTEND(bugprone-reserved-identifier,bugprone-std-namespace-modification)
#endif
