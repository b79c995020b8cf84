// The instruction sets that kernels are compiled for, and the one in use.
//
// A file of kernels is compiled once per instruction set, with FATCLIP_TABLE naming the table that it defines and
// nothing else in it with linkage: code built for AVX-512 must never be picked for another CPU.
#pragma once

namespace fatclip {

enum Isa : int { kAvx512, kAvx2, kPortable, kIsas };  // best first

const char* isa_name(Isa isa);

// Whether this build has kernels for it.
bool is_built(Isa isa);

// Whether this CPU has the instructions.
bool runs_here(Isa isa);

// The best that runs here, or the one FATCLIP_ISA names; throws std::runtime_error if that one cannot run.
Isa isa_in_use();

}  // namespace fatclip
