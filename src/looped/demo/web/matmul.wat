;; y = x w for row-major float32 matrices, by SIMD: the one hot loop of the browser engine.
;;
;; x is M by K, w is K by N, y is M by N. Addresses and row strides are in bytes. M must be a multiple of 4 and N of 8.
;; Four rows by eight columns of y are kept in eight vectors (row a, b, c or d; left or right half) while k runs over K:
;; each vector of w that is loaded serves four rows.

(module
  (import "engine" "memory" (memory 1))
  (func (export "matmul")
    (param $x i32) (param $x_stride i32)
    (param $w i32) (param $w_stride i32)
    (param $y i32) (param $y_stride i32)
    (param $m i32) (param $k i32) (param $n i32)
    (local $row i32) (local $column i32) (local $left i32)
    (local $xa i32) (local $xb i32) (local $xc i32) (local $xd i32) (local $wk i32) (local $out i32)
    (local $a0 v128) (local $a1 v128) (local $b0 v128) (local $b1 v128)
    (local $c0 v128) (local $c1 v128) (local $d0 v128) (local $d1 v128)
    (local $w0 v128) (local $w1 v128) (local $s v128)

    (loop $rows
      (local.set $column (i32.const 0))
      (loop $columns
        (local.set $xa (i32.add (local.get $x) (i32.mul (local.get $row) (local.get $x_stride))))
        (local.set $xb (i32.add (local.get $xa) (local.get $x_stride)))
        (local.set $xc (i32.add (local.get $xb) (local.get $x_stride)))
        (local.set $xd (i32.add (local.get $xc) (local.get $x_stride)))
        (local.set $wk (i32.add (local.get $w) (i32.shl (local.get $column) (i32.const 2))))
        (local.set $a0 (v128.const i32x4 0 0 0 0))
        (local.set $a1 (v128.const i32x4 0 0 0 0))
        (local.set $b0 (v128.const i32x4 0 0 0 0))
        (local.set $b1 (v128.const i32x4 0 0 0 0))
        (local.set $c0 (v128.const i32x4 0 0 0 0))
        (local.set $c1 (v128.const i32x4 0 0 0 0))
        (local.set $d0 (v128.const i32x4 0 0 0 0))
        (local.set $d1 (v128.const i32x4 0 0 0 0))

        (local.set $left (local.get $k))
        (loop $inner
          (local.set $w0 (v128.load (local.get $wk)))
          (local.set $w1 (v128.load offset=16 (local.get $wk)))

          (local.set $s (v128.load32_splat (local.get $xa)))
          (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $xb)))
          (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $xc)))
          (local.set $c0 (f32x4.add (local.get $c0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $c1 (f32x4.add (local.get $c1) (f32x4.mul (local.get $s) (local.get $w1))))
          (local.set $s (v128.load32_splat (local.get $xd)))
          (local.set $d0 (f32x4.add (local.get $d0) (f32x4.mul (local.get $s) (local.get $w0))))
          (local.set $d1 (f32x4.add (local.get $d1) (f32x4.mul (local.get $s) (local.get $w1))))

          (local.set $xa (i32.add (local.get $xa) (i32.const 4)))
          (local.set $xb (i32.add (local.get $xb) (i32.const 4)))
          (local.set $xc (i32.add (local.get $xc) (i32.const 4)))
          (local.set $xd (i32.add (local.get $xd) (i32.const 4)))
          (local.set $wk (i32.add (local.get $wk) (local.get $w_stride)))
          (br_if $inner (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))

        (local.set $out (i32.add
          (i32.add (local.get $y) (i32.mul (local.get $row) (local.get $y_stride)))
          (i32.shl (local.get $column) (i32.const 2))))
        (v128.store (local.get $out) (local.get $a0))
        (v128.store offset=16 (local.get $out) (local.get $a1))
        (local.set $out (i32.add (local.get $out) (local.get $y_stride)))
        (v128.store (local.get $out) (local.get $b0))
        (v128.store offset=16 (local.get $out) (local.get $b1))
        (local.set $out (i32.add (local.get $out) (local.get $y_stride)))
        (v128.store (local.get $out) (local.get $c0))
        (v128.store offset=16 (local.get $out) (local.get $c1))
        (local.set $out (i32.add (local.get $out) (local.get $y_stride)))
        (v128.store (local.get $out) (local.get $d0))
        (v128.store offset=16 (local.get $out) (local.get $d1))

        (br_if $columns
          (i32.lt_u (local.tee $column (i32.add (local.get $column) (i32.const 8))) (local.get $n))))
      (br_if $rows
        (i32.lt_u (local.tee $row (i32.add (local.get $row) (i32.const 4))) (local.get $m))))))
