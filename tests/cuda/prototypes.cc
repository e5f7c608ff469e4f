// The header's prototypes of driver and compiler against NVIDIA's own cuda.h and nvrtc.h: the number of arguments, and of each (and of the answer)
// size and kind: pointer or number, signed or not; behind a pointer the same again. An enum stands for an int, a handle for a pointer.
#define GEMMA3_IMPLEMENTATION
#define GEMMA3_NO_STB_IMAGE
#include "gemma3.h"
#include <cuda.h>
#include <nvrtc.h>
#include <type_traits>

template <class T> struct bare { typedef typename std::remove_cv<T>::type type; };
template <class T, bool> struct behind_enum { typedef T type; };
template <class T> struct behind_enum<T, true> { typedef int type; };    // the sign of an enum is the compiler's choice
template <class T> struct plain { typedef typename behind_enum<typename bare<T>::type, std::is_enum<typename bare<T>::type>::value>::type type; };

// Incomplete types (handles) and void have no size: a pointer to one passes for a pointer to anything.
template <class T, class = void> struct opaque : std::true_type {};
template <class T> struct opaque<T, decltype(void(sizeof(T)))> : std::integral_constant<bool, std::is_void<T>::value || std::is_class<T>::value || std::is_union<T>::value> {};

template <class A, class B> struct same;
template <class A, class B, bool known> struct same_target : std::true_type {};
template <class A, class B> struct same_target<A, B, true> : same<A, B> {};
template <class A, class B> struct same_plain : std::integral_constant<bool, std::is_arithmetic<A>::value && std::is_arithmetic<B>::value && sizeof(A) == sizeof(B)
    && std::is_signed<A>::value == std::is_signed<B>::value && std::is_floating_point<A>::value == std::is_floating_point<B>::value> {};
template <class A, class B> struct same_plain<A *, B *> : same_target<A, B, !opaque<typename bare<A>::type>::value && !opaque<typename bare<B>::type>::value> {};
template <class A, class B> struct same : same_plain<typename plain<A>::type, typename plain<B>::type> {};

template <class A, class B> struct agree : std::false_type {};
template <class R, class S> struct agree<R (*)(), S (*)()> : same<R, S> {};
template <class R, class S, class A, class... As, class B, class... Bs> struct agree<R (*)(A, As...), S (*)(B, Bs...)>
    : std::integral_constant<bool, same<A, B>::value && agree<R (*)(As...), S (*)(Bs...)>::value> {};

// ---- the comparison can fail

static_assert(agree<int (*)(int), int (*)(CUdevice)>::value && agree<int (*)(void **), CUresult (*)(CUcontext *)>::value && agree<int (*)(g3__cu_ptr), CUresult (*)(CUdeviceptr)>::value, "these agree");
static_assert(!agree<int (*)(int), int (*)(unsigned)>::value, "sign");
static_assert(!agree<int (*)(int), int (*)(size_t)>::value, "size");
static_assert(!agree<int (*)(int), int (*)(int, int)>::value, "number");
static_assert(!agree<int (*)(int *), int (*)(size_t *)>::value && !agree<int (*)(void **), int (*)(int *)>::value, "behind a pointer");
static_assert(!agree<int (*)(void *), int (*)(CUdeviceptr)>::value, "a number is no pointer");
static_assert(!agree<int (*)(int), const char *(*)(int)>::value, "the answer");

// ---- each call

#ifdef COUNT_CALLS
#include <stdio.h>
#define ONE(name, params) +1
int main(void) { printf("%d\n", 0 G3__DRIVER(ONE) G3__NVRTC(ONE) + 1); return 0; }
#else
#define CHECK(name, params) static_assert(agree<int (*) params, decltype(&name)>::value, #name ": not as NVIDIA's header has it");
G3__DRIVER(CHECK)
G3__NVRTC(CHECK)
static_assert(agree<g3__nvrtc_words *, decltype(&nvrtcGetErrorString)>::value, "nvrtcGetErrorString: not as NVIDIA's header has it");
#endif
