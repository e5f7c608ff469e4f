#!/usr/bin/env python3
# folds.py: makes folds.txt: what ptxas itself computes when an instruction's operands are constants.
#
#     python3 tests/fakecuda/folds.py > tests/fakecuda/folds.txt     # needs ptxas and nvdisasm (PyPI: nvidia-cuda-nvdisasm) on the PATH
#
# Each case is a kernel that moves constants into registers, runs one instruction and stores the result. The assembler folds most of them; the
# constant is then read back from the disassembly. What it leaves to the hardware is dropped. test_folds.c runs the same cases on the emulated card.
import itertools, os, re, struct, subprocess, sys, tempfile

F = [0x0, 0x80000000, 0x1, 0x80000001, 0x7fffff, 0x800000, 0x3e99999a, 0x3f000000, 0x3f800000, 0xbf800000, 0x3f800001, 0x3fc00000, 0x40200000, 0x40400000, 0xc0490fdb,
     0x4b000001, 0x4effffff, 0x4f000000, 0xcf000000, 0x5f800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000]
I = [0x0, 0x1, 0x7, 0x1f, 0x20, 0x21, 0x40, 0xff, 0x7654, 0x8000, 0x10000, 0x5a5a, 0x7fffffff, 0x80000000, 0xdeadbeef, 0xfffffff8, 0xffffffff]
D = [0x0, 0x1, 0x3f, 0x40, 0xffffffff, 0x100000000, 0x123456789abcdef0, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff]
G = [0x0, 0x3ff0000000000000, 0xbff8000000000000, 0x41e0000000000000, 0xc1e0000000200000, 0x43e0000000000000, 0x3690000000000000, 0x36a8000000000000, 0x47efffffffffffff,
     0x7ff0000000000000, 0x7ff8000000000000]
H = [0x0, 0x1, 0x7f, 0x80, 0x8000, 0x3c00, 0x7bff, 0x7c00, 0x7e00, 0xffff]
BF16 = [0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0xff812345, 0x7f7f8000, 0x7f7f7fff, 0x00008000, 0x00018000, 0x80008000]
POOL = {'f': F, 'r': I, 'd': D, 'g': G, 'h': H, 'p': [0, 1]}

SPELLINGS = '''
add.s32 r rr; add.s64 d dd; sub.s32 r rr; sub.s64 d dd; mul.lo.s32 r rr; mul.hi.s32 r rr; mul.hi.u32 r rr; mul.lo.s64 d dd; mul.hi.s64 d dd; mul.hi.u64 d dd; mul.wide.s32 d rr;
mul.wide.u32 d rr; mul.wide.u16 r hh; mul.wide.s16 r hh; mad.lo.s32 r rrr; mad.wide.u32 d rrd; div.s32 r rr; div.u32 r rr; rem.s32 r rr; rem.u32 r rr; div.s64 d dd; rem.u64 d dd;
abs.s32 r r; neg.s32 r r; neg.s64 d d; min.s32 r rr; min.u32 r rr; max.s32 r rr; max.u32 r rr; min.s64 d dd; max.u64 d dd; and.b32 r rr; or.b64 d dd; xor.b32 r rr; not.b32 r r;
shl.b32 r rr; shl.b64 d dr; shr.u32 r rr; shr.s32 r rr; shr.u64 d dr; shr.s64 d dr; shl.b16 h hr; shr.u16 h hr; shr.s16 h hr; clz.b32 r r; clz.b64 r d; popc.b32 r r; popc.b64 r d; brev.b32 r r;
brev.b64 d d; bfind.u32 r r; bfind.s32 r r; bfind.shiftamt.u32 r r; bfi.b32 r rrrr; bfe.u32 r rrr; bfe.s32 r rrr; shf.l.wrap.b32 r rrr; shf.r.wrap.b32 r rrr; shf.l.clamp.b32 r rrr;
shf.r.clamp.b32 r rrr; prmt.b32 r rrr; dp4a.s32.s32 r rrr; dp4a.u32.u32 r rrr; selp.b32 r rrp;
add.f32 f ff; sub.f32 f ff; mul.f32 f ff; add.ftz.f32 f ff; mul.ftz.f32 f ff; add.rz.f32 f ff; add.rm.f32 f ff; mul.rz.f32 f ff; mul.rp.f32 f ff; fma.rn.f32 f fff; fma.rz.f32 f fff; fma.rn.ftz.f32 f fff;
min.f32 f ff; max.f32 f ff; min.ftz.f32 f ff; max.ftz.f32 f ff; abs.f32 f f; neg.f32 f f; copysign.f32 f ff; div.rn.f32 f ff; rcp.rn.f32 f f; sqrt.rn.f32 f f;
rcp.approx.ftz.f32 f f; rsqrt.approx.f32 f f; rsqrt.approx.ftz.f32 f f; sqrt.approx.f32 f f; sqrt.approx.ftz.f32 f f; ex2.approx.f32 f f; ex2.approx.ftz.f32 f f; lg2.approx.f32 f f; lg2.approx.ftz.f32 f f;
sin.approx.f32 f f; cos.approx.f32 f f; tanh.approx.f32 f f; div.approx.f32 f ff; add.f64 g gg; mul.f64 g gg; fma.rn.f64 g ggg;
setp.eq.f32 p ff; setp.ne.f32 p ff; setp.lt.f32 p ff; setp.le.f32 p ff; setp.gt.f32 p ff; setp.ge.f32 p ff; setp.equ.f32 p ff; setp.neu.f32 p ff; setp.ltu.f32 p ff; setp.leu.f32 p ff; setp.gtu.f32 p ff;
setp.geu.f32 p ff; setp.num.f32 p ff; setp.nan.f32 p ff; setp.lt.ftz.f32 p ff; setp.eq.ftz.f32 p ff; setp.lt.s32 p rr; setp.lt.u32 p rr; setp.ge.s64 p dd; setp.gt.u64 p dd;
cvt.rn.bf16.f32 h f; cvt.rn.f16.f32 h f; cvt.rn.bf16x2.f32 r ff; cvt.rn.f16x2.f32 r ff; cvt.f32.f16 f h; cvt.rn.satfinite.e4m3x2.f32 h ff; cvt.rn.f16x2.e4m3x2 r h;
cvt.rni.s32.f32 r f; cvt.rzi.s32.f32 r f; cvt.rmi.s32.f32 r f; cvt.rpi.s32.f32 r f; cvt.rni.u32.f32 r f; cvt.rzi.u32.f32 r f; cvt.rzi.s64.f32 d f; cvt.rzi.u64.f32 d f; cvt.rni.f32.f32 f f; cvt.rzi.f32.f32 f f;
cvt.rmi.f32.f32 f f; cvt.rpi.f32.f32 f f; cvt.sat.f32.f32 f f; cvt.rni.ftz.s32.f32 r f; cvt.rn.f32.s32 f r; cvt.rn.f32.u32 f r; cvt.rn.f32.s64 f d; cvt.rn.f32.u64 f d; cvt.rn.f64.s32 g r; cvt.f64.f32 g f;
cvt.rn.f32.f64 f g; cvt.rzi.s32.f64 r g; cvt.rzi.s64.f64 d g; cvt.s64.s32 d r; cvt.u64.u32 d r; cvt.u32.u64 r d; cvt.u32.u16 r h; cvt.s32.s16 r h; cvt.s32.s8 r h; cvt.u16.u8 h h; cvt.u16.u32 h r;
mul.rn.f16x2 r rr; add.f16x2 r rr; fma.rn.f16x2 r rrr
'''
# Single cases: .ftz takes what is below 2^-126 after rounding to 24 bits, not what rounds to a subnormal.
EDGES = '''
mul.ftz.f32 f ff 3f7fffff 800000; mul.ftz.f32 f ff ffffff 3f000000; mul.ftz.f32 f ff 3f800000 800000; mul.ftz.f32 f ff 3f7ffffe 800000; mul.f32 f ff 3f7fffff 800000; mul.f32 f ff ffffff 3f000000;
cvt.rn.ftz.f32.f64 f g 380fffffd0000000; cvt.rn.ftz.f32.f64 f g 380fffffe0000000; cvt.rn.ftz.f32.f64 f g 380fffffefffffff; cvt.rn.ftz.f32.f64 f g 380ffffff0000000;
cvt.rn.ftz.f32.f64 f g 380ffffff0000001; cvt.rn.ftz.f32.f64 f g 3810000000000000; cvt.rn.ftz.f32.f64 f g 36a8000000000000; cvt.rn.ftz.f32.f64 f g 3ff0000000000000;
cvt.rn.f32.f64 f g 380fffffe0000000; cvt.rn.f32.f64 f g 380fffffd0000000; cvt.ftz.f64.f32 g f 7fffff; cvt.ftz.f64.f32 g f 800000; cvt.ftz.f64.f32 g f 3e99999a
'''
MOST = 14                                            # cases of a spelling that are tried

def cases():
    for line in SPELLINGS.replace('\n', ' ').split(';'):
        op, dest, sources = line.split()
        pools = [POOL[c] for c in sources]
        if 'bf16' in op: pools = [BF16 + F for _ in sources]
        every = list(itertools.product(*pools))
        step = max(1, len(every) // MOST)
        if step > 1 and step % 2 == 0: step += 1     # an odd stride, so that no operand stands still
        for values in every if len(every) <= 2 * MOST else every[::step]: yield op, dest, sources, values
    for line in EDGES.split(';'):
        op, dest, sources, *values = line.split()
        yield op, dest, sources, tuple(int(v, 16) for v in values)

TYPE = {'r': 'u32', 'd': 'u64', 'h': 'u16', 'f': 'f32', 'g': 'f64'}
def literal(c, v): return '0f%08x' % v if c == 'f' else '0d%016x' % v if c == 'g' else '0x%x' % v

def kernel(n, op, dest, sources, values):
    t = ['.visible .entry t%d(.param .u64 p) {' % n, '.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .b16 %h<9>; .reg .f32 %f<9>; .reg .f64 %g<9>; .reg .pred %p<9>;',
         'ld.param.u64 %d7, [p]; cvta.to.global.u64 %d8, %d7;']
    for i, (c, v) in enumerate(zip(sources, values)):
        t.append('setp.ne.u32 %%p%d, %d, 0;' % (i + 1, v) if c == 'p' else 'mov.%s %%%s%d, %s;' % (TYPE[c], c, i + 1, literal(c, v)))
    t.append('%s %%%s0, %s;' % (op, dest, ', '.join('%%%s%d' % (c, i + 1) for i, c in enumerate(sources))))
    t.append({'r': 'st.global.u32 [%d8], %r0;', 'f': 'st.global.f32 [%d8], %f0;', 'd': 'st.global.u64 [%d8], %d0;', 'g': 'st.global.f64 [%d8], %g0;',
              'h': 'cvt.u32.u16 %r0, %h0; st.global.u32 [%d8], %r0;', 'p': 'selp.u32 %r0, 1, 0, %p0; st.global.u32 [%d8], %r0;'}[dest])
    return '\n'.join(t + ['ret;', '}'])

def half(s): return struct.unpack('<H', struct.pack('<e', float(s.replace('+INF', 'inf').replace('-INF', '-inf').replace('+QNAN', 'nan').replace('-QNAN', '-nan'))))[0]

# The constant that a kernel stores, or None: registers are followed through the moves that the assembler makes of constants.
def folded(code, wide):
    reg = {'RZ': 0, 'URZ': 0}
    def value(x): return int(x, 16) if x.startswith('0x') else reg.get(x)
    for ins in code:
        ins = re.sub(r'\s+', ' ', ins.strip())
        m = re.match(r'(?:MOV|UMOV) (U?R\d+), (\S+)$', ins) or re.match(r'IMAD\.(?:MOV\.)?U32 (R\d+), RZ, RZ, (\S+)$', ins)
        if m: reg[m[1]] = value(m[2]); continue
        m = re.match(r'HFMA2(?:\.MMA)? (R\d+), -RZ, RZ, ([^,]+), ([^,]+)$', ins)
        if m: reg[m[1]] = half(m[2]) << 16 | half(m[3]); continue
        m = re.match(r'CS2R R(\d+), SRZ$', ins)
        if m: reg['R' + m[1]] = reg['R%d' % (int(m[1]) + 1)] = 0; continue
        m = re.match(r'STG\.E(\.64)? (?:desc\[\S+\]\s?)?\[[^\]]*\], (R\d+|RZ)', ins)
        if m:
            low = reg.get(m[2])
            if not wide: return low
            high = 0 if m[2] == 'RZ' else reg.get('R%d' % (int(m[2][1:]) + 1))
            return None if low is None or high is None else high << 32 | low
        m = re.match(r'\S+ (U?R\d+)', ins)           # anything else: what it writes is no constant; it may be a pair
        if m:
            reg.pop(m[1], None)
            reg.pop(re.sub(r'\d+', lambda d: str(int(d[0]) + 1), m[1]), None)
    return None

def main():
    every = list(cases())
    text = '.version 8.1\n.target sm_89\n.address_size 64\n' + '\n'.join(kernel(i, *c) for i, c in enumerate(every))
    with tempfile.TemporaryDirectory() as d:
        ptx, cubin = os.path.join(d, 'f.ptx'), os.path.join(d, 'f.cubin')
        open(ptx, 'w').write(text)
        subprocess.run(['ptxas', '-arch=sm_89', ptx, '-o', cubin], check=True)
        sass = subprocess.run(['nvdisasm', '-c', cubin], check=True, capture_output=True, text=True).stdout
        version = re.search(r'release [\d.]+, V([\d.]+)', subprocess.run(['ptxas', '--version'], capture_output=True, text=True).stdout)[1]
    parts = re.split(r'\.text\.t(\d+):', sass)
    code = {int(parts[i]): [re.sub(r'/\*[0-9a-fx]+\*/', '', l).split(';')[0] for l in parts[i + 1].splitlines() if re.search(r'/\*[0-9a-f]{4}\*/', l)] for i in range(1, len(parts) - 1, 2)}
    print('# What ptxas %s computes for sm_89: instruction, classes of result and operands (rows.h), operands, result. Made by folds.py.' % version)
    kept = 0
    for i, (op, dest, sources, values) in enumerate(every):
        v = folded(code.get(i, []), dest in 'dg')
        if v is None: continue
        kept += 1
        print(op, dest, sources, ' '.join('%x' % x for x in values), '=', '%x' % v)
    print('folds.py: %d of %d cases folded' % (kept, len(every)), file=sys.stderr)

main()
