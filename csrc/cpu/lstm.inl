// The pointwise part of an LSTM step for one instruction set. lstm.cpp includes this once for each, with Floats and
// Ints (vectors of float and int32), kFloats, the attribute FATCLIP_TARGET, and fma(a, b, c), load_few(p, count) and
// store_few(p, v, count) defined.

// Some elements of a row: whole vectors, and at its end what is left.
FATCLIP_TARGET inline Floats load(const float* p, int64_t count) {
  if (count < kFloats) return load_few(p, count);
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
FATCLIP_TARGET inline void store(float* p, Floats v, int64_t count) {
  if (count < kFloats) return store_few(p, v, count);
  std::memcpy(p, &v, sizeof v);
}

// exp(x) to 2 units in the last place; flushed to about 1e-38 and 1e38 at the ends, nan stays.
FATCLIP_TARGET inline Floats exponential(Floats x) {
  constexpr float kWhole = 0x1.8p23f;  // what is added to it is rounded to a whole number
  x = -87.0f > x ? Floats{} - 87.0f : x;
  x = 88.0f < x ? Floats{} + 88.0f : x;
  const Floats whole = (x * 1.44269504f + kWhole) - kWhole;
  Floats r = fma(whole, Floats{} - 0.693359375f, x);
  r = fma(whole, Floats{} + 2.12194440e-4f, r);
  Floats p = Floats{} + 1.0f / 5040;
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, Floats{} + c);
  const Ints bits = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
FATCLIP_TARGET inline Floats logistic(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

FATCLIP_TARGET void forward(const Forward& a, int64_t rows, int64_t hidden) {
  for (int64_t row = 0; row < rows; ++row) {
    float* gates = a.gates + row * 4 * hidden;
    for (int64_t j = 0; j < hidden; j += kFloats) {
      const int64_t count = hidden - j, at = row * hidden + j;
      Floats gate[4];
      for (int k = 0; k < 4; ++k) {
        gate[k] = logistic(load(gates + k * hidden + j, count));
        store(gates + k * hidden + j, gate[k], count);
      }
      const Floats g = gate[2] + gate[2] - 1.0f;
      const Floats cell = fma(gate[1], load(a.before + at, count), gate[0] * g);
      const Floats s = logistic(cell + cell), tanh = s + s - 1.0f, state = gate[3] * tanh;
      store(a.cell + at, cell, count);
      store(a.tanh + at, tanh, count);
      store(a.state + row * a.state_stride + j, state, count);
      if (a.above) store(a.above + row * a.above_stride + j, state, count);
    }
  }
}

FATCLIP_TARGET void backward(const Backward& a, int64_t rows, int64_t hidden) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* gates = a.gates + row * 4 * hidden;
    float* grads = a.grads + row * 4 * hidden;
    float* kept = a.kept + row / a.batch * a.kept_stride + row % a.batch * 4 * hidden;
    for (int64_t j = 0; j < hidden; j += kFloats) {
      const int64_t count = hidden - j, at = row * hidden + j;
      Floats gate[4];
      for (int k = 0; k < 4; ++k) gate[k] = load(gates + k * hidden + j, count);
      Floats flow = load(a.flow + row * a.flow_stride + j, count);
      if (a.more) flow += load(a.more + row * a.more_stride + j, count);
      const Floats tanh = load(a.tanh + at, count), through = flow * gate[3];
      const Floats cell = load(a.grad_cell + at, count) + through * (1.0f - tanh * tanh);
      const Floats onward = cell * gate[1], inward = cell * gate[0];
      const Floats found[4] = {inward * (gate[2] - 0.5f) * (1.0f - gate[0]),
                               onward * load(a.before + at, count) * (1.0f - gate[1]),
                               inward * gate[2] * (1.0f - gate[2]), through * tanh * (1.0f - gate[3])};
      store(a.grad_cell + at, onward, count);
      for (int k = 0; k < 4; ++k) {
        store(grads + k * hidden + j, found[k], count);
        store(kept + k * hidden + j, found[k], count);
      }
    }
  }
}
