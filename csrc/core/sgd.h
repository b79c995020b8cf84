// One element of torch.optim.SGD's update with a clipped gradient, shared by every device.
//
// The order of operations and the use of fma are those of torch's CPU kernels, so an unclipped step
// has the bits of torch.optim.SGD. V is a number, or a SIMD vector of them; fma(a, b, c) = a * b + c, rounded once.
#pragma once
#include "clip.h"

namespace fatclip {

// The caller's hyper-parameters of one parameter group.
struct SgdHyper {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};

enum Momentum { kNone, kFresh, kRunning };  // kFresh: the buffer holds nothing yet

// The same in the arithmetic type of the kernel (float for 16-bit data), V = T or a vector of T.
template <class V>
struct SgdArgs {
  V minus_lr, momentum, keep, weight_decay;
  bool nesterov;
};

// g is the clipped gradient, negated for maximize.
template <bool kDecay, Momentum kMomentum, class V, class Fma>
FATCLIP_DEVICE void sgd_element(V& x, V g, V& buffer, const SgdArgs<V>& a, Fma fma) {
  if (kDecay) g = fma(x, a.weight_decay, g);
  if (kMomentum != kNone) {
    buffer = kMomentum == kFresh ? g : fma(g, a.keep, buffer * a.momentum);
    g = a.nesterov ? fma(buffer, a.momentum, g) : buffer;
  }
  x = fma(g, a.minus_lr, x);
}

}  // namespace fatclip
