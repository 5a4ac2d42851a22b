// How a function is declared that host and device compilers both build: the one place outside the
// GPU rooms that knows there are such compilers. C++17.
#pragma once

// nvcc and hipcc get a function for both sides; to g++ and clang the word is empty.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define ZH_HOST_DEVICE __host__ __device__
#else
#define ZH_HOST_DEVICE
#endif

// Inlined even in a debug build. An inline function that a translation unit for AVX-512 leaves
// behind as a symbol may be the copy that the linker gives to everybody, and then an older
// processor dies in it.
#define ZH_ALWAYS_INLINE __attribute__((always_inline)) inline
