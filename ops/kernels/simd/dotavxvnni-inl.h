// ORT_DYNQ_DOT(name) adds dot products of `codes` and `weights` to `sums`, in instruction `name` of AVX-VNNI. Built for
// AVX-512 VNNI instead, it is the same instruction in its other encoding; the tests do that on CPUs without this one.
#if defined(__AVXVNNI__) || defined(_MSC_VER)
#define ORT_DYNQ_DOT(name) ORT_DYNQ_ACCUMULATE("%{vex%} vp" #name, "x", _mm256_##name##_avx_epi32, sums, codes, weights)
#else
#define ORT_DYNQ_DOT(name) ORT_DYNQ_ACCUMULATE("vp" #name, "x", _mm256_##name##_epi32, sums, codes, weights)
#endif
