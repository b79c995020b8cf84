// "far": to torch a device of its own, though its memory and its arithmetic are the CPU's. What Python code does with
// its tensors it does with a GPU's: they are copied to and fro, and an operation that mixes them with the CPU's is
// refused.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kFar = c10::DeviceType::PrivateUse1;

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t n) override {
    void* p = std::malloc(n + 1);
    return {p, p, [](void* q) { std::free(q); }, at::Device(kFar, 0)};
  }
  at::DeleterFnPtr raw_deleter() const override {
    return [](void* q) { std::free(q); };
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kFar, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
Hooks hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// One device with one stream, on which everything has happened as soon as it is asked for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFar; }
  c10::Device exchangeDevice(c10::Device) const override { return here(); }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

 private:
  static c10::Device here() { return {kFar, 0}; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The same memory as a CPU tensor.
at::Tensor near(const at::Tensor& t) {
  if (!t.defined() || t.is_cpu()) return t;
  return at::from_blob(
      t.storage().mutable_data_ptr().get(), t.sizes(), t.strides(), t.storage_offset(), [keep = t](void*) {},
      t.options().device(at::kCPU), at::Device(at::kCPU));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  near(to).copy_(near(from));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::Tensor(to).resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar item(const at::Tensor& t) { return at::_local_scalar_dense(near(t)); }

void refuse_mixture(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto count = op.schema().arguments().size();
  auto check = [&](const at::Tensor& t) {
    TORCH_CHECK(!t.defined() || t.device().type() == kFar || t.dim() == 0, op.schema().name(),
                ": a tensor on the CPU among tensors on another device");
  };
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) check(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& t : stack[i].toTensorVector()) check(t);
  }
}
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_mixture(op, *stack);
  at::native::cpu_fallback(op, stack);
}

at::Tensor view(const at::Tensor& t, at::IntArrayRef size) { return at::native::view(t, size); }
at::Tensor as_strided(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
at::Tensor reshape_alias(const at::Tensor& t, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(t, size, stride, t.storage_offset());
}
const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Contiguous);
  const int64_t needed = (t.storage_offset() + c10::multiply_integers(size)) * t.element_size();
  if (static_cast<int64_t>(t.storage().nbytes()) < needed) {
    at::DataPtr fresh = allocator.allocate(needed);
    std::memcpy(fresh.get(), t.storage().data(), t.storage().nbytes());
    t.storage().set_data_ptr(std::move(fresh));
    t.storage().set_nbytes(needed);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}

at::Tensor far(const at::Tensor& t) { return t.defined() ? t.to(at::Device(kFar, 0)) : t; }

// Convolutions and LSTM cells, for which torch expects every device to have kernels of its own.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const auto bias = b && b->defined() ? std::optional(near(*b)) : std::nullopt;
  return far(at::convolution(near(x), near(w), bias, stride, padding, dilation, transposed, output_padding, groups));
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& g, const at::Tensor& x,
                                                                    const at::Tensor& w, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> mask) {
  const auto bias = std::optional<at::IntArrayRef>(w.sizes().slice(0, 1));
  auto [gx, gw, gb] = at::convolution_backward(near(g), near(x), near(w), bias, stride, padding, dilation, transposed,
                                               output_padding, groups, mask);
  return {far(gx), far(gw), far(gb)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& from_input, const at::Tensor& from_state,
                                                         const at::Tensor& cell,
                                                         const std::optional<at::Tensor>& input_bias,
                                                         const std::optional<at::Tensor>& state_bias) {
  at::Tensor gates = near(from_input) + near(from_state);
  for (const auto* bias : {&input_bias, &state_bias})
    if (*bias && (*bias)->defined()) gates = gates + near(**bias);
  auto parts = gates.chunk(4, 1);
  for (int k : {0, 1, 3}) parts[k].sigmoid_();
  parts[2].tanh_();
  const at::Tensor after = parts[1] * near(cell) + parts[0] * parts[2];
  return {far(parts[3] * after.tanh()), far(after), far(gates)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const std::optional<at::Tensor>& grad_state,
                                                                  const std::optional<at::Tensor>& grad_cell,
                                                                  const at::Tensor& before, const at::Tensor& after,
                                                                  const at::Tensor& workspace, bool has_bias) {
  const auto parts = near(workspace).chunk(4, 1);
  const at::Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3], tanh = near(after).tanh();
  auto given = [&](const std::optional<at::Tensor>& t) { return t && t->defined() ? near(*t) : at::zeros_like(tanh); };
  const at::Tensor state = given(grad_state), cell = given(grad_cell) + state * o * (1 - tanh * tanh);
  const at::Tensor gates = at::cat(
      {cell * g * i * (1 - i), cell * near(before) * f * (1 - f), cell * i * (1 - g * g), state * tanh * o * (1 - o)},
      1);
  return {far(gates), far(cell * f), has_bias ? far(gates.sum(0)) : at::Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
