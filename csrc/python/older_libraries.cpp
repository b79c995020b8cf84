// Symbols that newer compilers ask of newer glibc and libstdc++, defined here by what older ones have: so a module that
// is built on a recent system loads on every manylinux_2_28 one. They are hidden: no other library sees them.
#include <exception>
#include <new>

#define FATCLIP_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

// glibc 2.32. Always "no": shared pointers then count by atomic operations.
FATCLIP_HIDDEN char __libc_single_threaded = 0;

#if defined(__GLIBCXX__)
// GLIBCXX_3.4.29.
FATCLIP_HIDDEN void throw_bad_array_new_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_array_new_length(); }

// CXXABI_1.3.13: what the copy constructor and the destructor of std::exception_ptr call since they are inline. Both
// are still there as functions (CXXABI_1.3.3); a pointer to the exception is all that an exception_ptr holds.
void copy_exception_ptr(void** self, void* const* other) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy_exception_ptr(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

FATCLIP_HIDDEN void addref(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void addref(void** self) {
  void* copy;
  copy_exception_ptr(&copy, self);
}
FATCLIP_HIDDEN void release(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(void** self) {
  destroy_exception_ptr(self);
  *self = nullptr;
}
#endif

}  // extern "C"
