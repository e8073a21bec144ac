/*
 * The element-wise part of a training step of independent normals, q(w_i) = N(mu_i, softplus(rho_i)^2), in two passes:
 *
 *   draw        w_i = mu_i + sigma_i z_i,   sigma_i = softplus(rho_i),   z the numbers that torch.randn would give
 *               KL = sum_i (d_i^2 + r_i^2 - 1) / 2 - log r_i,   d_i = (mu_i - m_i) / s_i,   r_i = sigma_i / s_i
 *   gradients   with g_i the gradient with respect to w_i and c that with respect to KL,
 *               G_mu  = g_i + c d_i / s_i
 *               G_rho = (g_i z_i + c (r_i - 1 / r_i) / s_i) sigmoid(rho_i)
 *               and, where it is asked for, the step of torch's fused Adam at once instead of writing G_mu, G_rho
 *
 * Every vector is walked through once, in blocks that fit the first cache; chunks of blocks are shared out to threads,
 * and sums are added up in the order of the chunks, so that nothing depends on the number of threads. z need not be
 * kept between the passes: the state of the generator at the beginning of each chunk is.
 *
 * z is torch's own stream, bit for bit: the Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), 24 bits to a uniform
 * number, and Box and Muller's transform of 16 at a time, with the polynomials of Cephes in the order in which
 * ATen/native/cpu/avx_mathfun.h (Pommier, Garberoglio; zlib licence) adds them up, multiplications and additions fused
 * as its compiler does it. Whether that is so for the torch that is installed is tested when this file is loaded.
 *
 * Loops are plain C for a compiler that vectorises; compile without contraction (-ffp-contract=off): what is to be
 * rounded once says fused().
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 1024 /* numbers at a time: a dozen buffers of them fit the first cache */
#define TWISTER 624

#ifdef __FMA__
#define fused(a, b, c) __builtin_fmaf(a, b, c)
#else
#define fused(a, b, c) ((a) * (b) + (c))
#endif

typedef struct {
    uint32_t word[TWISTER];
    uint32_t left; /* torch's count: left - 1 numbers are still to be taken */
    uint32_t next;
} twister;

typedef struct {
    const float *gradient; /* with respect to the draws of one site; NULL: 0 */
    int64_t stop;          /* where the site ends in the flat vector */
    float prior_loc, prior_inv_scale;
} site;

typedef struct {          /* torch's fused Adam, for one of the two vectors */
    float *mean, *square; /* its moments (P,); NULL where it is not asked for */
    float step;           /* -lr / (1 - beta1^t) */
    float root;           /* sqrt(1 - beta2^t) */
    float weight;         /* 1 - beta1 */
    float beta2, share;   /* share = 1 - beta2 */
    float eps;
} adam;

typedef struct {
    int64_t size, chunk, first, last; /* P, numbers to a chunk, and which chunks to do */
    const site *sites;   /* NULL: not weights but outputs of a layer are drawn */
    float *loc, *rho;    /* (P,); without sites a mean and a variance */
    float *noise;        /* (P,) z, or NULL: made from `states` */
    twister *states;     /* at the beginning of each chunk, or NULL: z is in `noise` */
    float *draw;         /* (P,) w; NULL in the second pass */
    double *kl;          /* per chunk */
    float kl_gradient;   /* c */
    float *grad_loc, *grad_rho;
    adam rules[2];
    int64_t next; /* the chunk that nobody has taken yet */
} work;

/* ------------------------------------------------------------------------------------------------------- numbers */

static inline float number(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }

/* e^x for x <= 0, to one unit in the last place, down to where it is 0. */
static inline float exponential(float x) {
    x = x < -104.0f ? -104.0f : x;
    float n = fused(x, 1.44269504f, 12582912.0f) - 12582912.0f; /* rounds to the nearest integer */
    float r = fused(n, -0.693145751953125f, x);
    r = fused(n, -1.42860682030941723212e-6f, r);
    float y = 1.9875691500e-4f;
    y = fused(y, r, 1.3981999507e-3f);
    y = fused(y, r, 8.3334519073e-3f);
    y = fused(y, r, 4.1665795894e-2f);
    y = fused(y, r, 1.6666665459e-1f);
    y = fused(y, r, 5.0000001201e-1f);
    y = fused(y, r * r, r) + 1.0f;
    int32_t i = (int32_t)n, half = i >> 1; /* in two steps, for 2^n alone may not be a normal number */
    return y * number((uint32_t)(half + 127) << 23) * number((uint32_t)(i - half + 127) << 23);
}

/* softplus(rho) = max(rho, 0) + 2 artanh(e / (2 + e)), e = e^-|rho|, the series to where it ends in float. */
static inline float softplus(float rho, float e) {
    float t = e / (e + 2.0f), s = t * t;
    float y = 1.0f / 13;
    y = fused(y, s, 1.0f / 11);
    y = fused(y, s, 1.0f / 9);
    y = fused(y, s, 1.0f / 7);
    y = fused(y, s, 1.0f / 5);
    y = fused(y, s, 1.0f / 3);
    y = fused(y * s, t, t);
    return (rho > 0.0f ? rho : 0.0f) + 2.0f * y;
}

/* --------------------------------------------------------------------------------------------------------- noise */

static void twist(uint32_t *restrict w) {
#define MIXED(u, v) (((u) & 0x80000000u) | ((v) & 0x7fffffffu)) >> 1 ^ (-((v) & 1u) & 0x9908b0dfu)
#pragma GCC ivdep
    for (int i = 0; i < 227; i++) w[i] = w[i + 397] ^ (MIXED(w[i], w[i + 1]));
#pragma GCC ivdep
    for (int i = 227; i < 623; i++) w[i] = w[i - 227] ^ (MIXED(w[i], w[i + 1]));
    w[623] = w[396] ^ (MIXED(w[623], w[0]));
}

/* Go on by n numbers; those are written as uniform numbers in [0, 1), if there is somewhere to write to. */
static void uniform(twister *g, int64_t n, float *out) {
    while (n > 0) {
        if (g->left <= 1) {
            twist(g->word);
            g->left = TWISTER + 1;
            g->next = 0;
        }
        int64_t k = g->left - 1 < n ? g->left - 1 : n;
        const uint32_t *from = g->word + g->next;
        if (out) {
            for (int64_t i = 0; i < k; i++) {
                uint32_t y = from[i];
                y ^= y >> 11;
                y ^= y << 7 & 0x9d2c5680u;
                y ^= y << 15 & 0xefc60000u;
                y ^= y >> 18;
                out[i] = (float)(int32_t)(y & 0xffffffu) * 0x1p-24f;
            }
            out += k;
        }
        g->left -= (uint32_t)k;
        g->next += (uint32_t)k;
        n -= k;
    }
}

static inline float logarithm(float x) { /* of 0 < x <= 1 */
    x = x > 0x1p-126f ? x : 0x1p-126f;
    uint32_t u = bits_of(x);
    float e = (float)((int32_t)(u >> 23) - 126);
    x = number((u & 0x807fffffu) | 0x3f000000u); /* in [.5, 1) */
    float below = x < 0.707106781186547524f ? 1.0f : 0.0f;
    e = e - below;
    x = (x - 1.0f) + (below != 0.0f ? x : 0.0f);
    float z = x * x, y = 7.0376836292e-2f;
    y = fused(y, x, -1.1514610310e-1f);
    y = fused(y, x, 1.1676998740e-1f);
    y = fused(y, x, -1.2420140846e-1f);
    y = fused(y, x, 1.4249322787e-1f);
    y = fused(y, x, -1.6668057665e-1f);
    y = fused(y, x, 2.0000714765e-1f);
    y = fused(y, x, -2.4999993993e-1f);
    y = fused(y, x, 3.3333331174e-1f);
    y = y * x;
    y = fused(y, z, e * -2.12194440e-4f);
    y = fused(-z, 0.5f, y);
    x = x + y;
    return fused(e, 0.693359375f, x);
}

static inline void sine_cosine(float x, float *sine, float *cosine) { /* of 0 <= x */
    int32_t j = ((int32_t)(x * 1.27323954473516f) + 1) & ~1;
    float y = (float)j;
    x = fused(y, -0.78515625f, x);
    x = fused(y, -2.4187564849853515625e-4f, x);
    x = fused(y, -3.77489497744594108e-8f, x);
    float z = x * x;
    float c = 2.443315711809948e-5f;
    c = fused(c, z, -1.388731625493765e-3f);
    c = fused(c, z, 4.166664568298827e-2f);
    c = c * z;
    c = fused(c, z, -(z * 0.5f)) + 1.0f;
    float s = -1.9515295891e-4f;
    s = fused(s, z, 8.3321608736e-3f);
    s = fused(s, z, -1.6666654611e-1f);
    s = s * z;
    s = fused(s, x, x);
    uint32_t sign_s = ((uint32_t)j & 4u) << 29, sign_c = (~(uint32_t)(j - 2) & 4u) << 29;
    *sine = number(bits_of(j & 2 ? c : s) ^ sign_s);
    *cosine = number(bits_of(j & 2 ? s : c) ^ sign_c);
}

/* Uniform to normal numbers, in place; n is a multiple of 16: of each 16 the first 8 and the last 8 make 8 pairs. */
static void box_muller(float *restrict x, int64_t n) {
    float a[BLOCK], b[BLOCK];
    for (int64_t g = 0; g < n / 16; g++) {
        memcpy(a + 8 * g, x + 16 * g, 32);
        memcpy(b + 8 * g, x + 16 * g + 8, 32);
    }
    for (int64_t i = 0; i < n / 2; i++) {
        float radius = __builtin_sqrtf(-2.0f * logarithm(1.0f - a[i])), s, c;
        sine_cosine(6.283185307179586f * b[i], &s, &c);
        a[i] = radius * c + 0.0f;
        b[i] = radius * s + 0.0f;
    }
    for (int64_t g = 0; g < n / 16; g++) {
        memcpy(x + 16 * g, a + 8 * g, 32);
        memcpy(x + 16 * g + 8, b + 8 * g, 32);
    }
}

/* The next n numbers of the generator; `end`: they are the last ones of the vector, of which torch makes 16 anew. */
static void normal(twister *g, float *out, int64_t n, int end) {
    uniform(g, n, out);
    box_muller(out, n & ~(int64_t)15);
    if (end && n % 16) {
        uniform(g, 16, out + n - 16);
        box_muller(out + n - 16, 16);
    }
}

/* ---------------------------------------------------------------------------------------------------- the passes */

static int64_t chunks_of(const work *w) { return w->size < w->chunk ? 1 : w->size / w->chunk; }
static int64_t end_of(const work *w, int64_t c) { return c + 1 == chunks_of(w) ? w->size : (c + 1) * w->chunk; }

/* Where a walk through the sites has come to: the site that the next entry belongs to, and where that begins. */
typedef struct {
    const site *at;
    int64_t begin;
} place;

/* What belongs to the entries start ... start + n - 1, site by site. */
static void gather(place *p, int64_t start, int64_t n, float *g, float *m, float *inv) {
    for (int64_t done = 0; done < n;) {
        while (p->at->stop <= start + done) p->begin = p->at++->stop;
        int64_t left = p->at->stop - start - done, k = left < n - done ? left : n - done;
        for (int64_t i = 0; i < k; i++) m[done + i] = p->at->prior_loc;
        for (int64_t i = 0; i < k; i++) inv[done + i] = p->at->prior_inv_scale;
        if (g && p->at->gradient) memcpy(g + done, p->at->gradient + (start + done - p->begin), 4 * (size_t)k);
        else if (g) memset(g + done, 0, 4 * (size_t)k);
        done += k;
    }
}

/*
 * sum_i (d_i^2 + r_i^2 - 1) / 2 - log r_i. Of each r the exponent is added and the mantissa multiplied, so that one
 * logarithm serves 64 of them; r = 0 gives infinity.
 */
static double kl_of(const float *loc, const float *sigma, const float *m, const float *inv, int64_t n) {
    float square[2 * BLOCK], product[2 * BLOCK];
    int32_t exponent[2 * BLOCK], zeros = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = (loc[i] - m[i]) * inv[i], r = sigma[i] * inv[i];
        square[i] = fused(d, d, fused(r, r, -1.0f));
        uint32_t u = bits_of(r), small = bits_of(r * 0x1p64f); /* of numbers below 2^-126 the exponent is not stored */
        zeros += r == 0.0f;
        exponent[i] = r < 0x1p-126f ? (int32_t)(small >> 23) - 191 : (int32_t)(u >> 23) - 127;
        product[i] = number(((r < 0x1p-126f ? small : u) & 0x7fffffu) | 0x3f800000u);
    }
    int64_t rows = n > BLOCK ? 2 * BLOCK : BLOCK;
    for (int64_t i = n; i < rows; i++) square[i] = 0, exponent[i] = 0, product[i] = 1;
    for (int halvings = 0; halvings < 6; halvings++) {
        rows /= 2;
        for (int64_t i = 0; i < rows; i++) {
            square[i] += square[rows + i];
            exponent[i] += exponent[rows + i];
            product[i] *= product[rows + i];
        }
    }
    double total = zeros ? INFINITY : 0;
    for (int64_t i = 0; i < rows; i++)
        total += 0.5 * (double)square[i] - (exponent[i] * 0.69314718055994530942 + log((double)product[i]));
    return total;
}

/* One step of torch's fused Adam on the entries from `start` on; the last size % 8 of the vector are the `tail`. */
static void adam_step(const adam *a, float *restrict x, const float *restrict g, int64_t start, int64_t n, int64_t tail) {
    float *restrict mean = a->mean + start, *restrict square = a->square + start;
    float weight = a->weight, beta2 = a->beta2, share = a->share, eps = a->eps, root = a->root, step = a->step;
    int near = weight < 0.5f;
    float coefficient = near ? weight : weight - 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float base = near ? mean[i] : g[i];
        float m = fused(coefficient, g[i] - mean[i], base);
        float old = square[i], v = fused(share * g[i], g[i], old * beta2);
        v = i < n - tail ? v : fused(old, beta2, share * g[i] * g[i]); /* torch's loop for these rounds otherwise */
        x[i] = x[i] + step * m / (__builtin_sqrtf(v) / root + eps);
        mean[i] = m;
        square[i] = v;
    }
}

static void do_block(const work *w, place *p, int64_t start, int64_t n, const float *z, double *kl) {
    float g[2 * BLOCK], m[2 * BLOCK], inv[2 * BLOCK], e[2 * BLOCK], sigma[2 * BLOCK];
    float *loc = w->loc + start, *rho = w->rho + start;
    gather(p, start, n, w->draw ? NULL : g, m, inv);
    for (int64_t i = 0; i < n; i++) {
        e[i] = exponential(rho[i] > 0.0f ? -rho[i] : rho[i]);
        sigma[i] = softplus(rho[i], e[i]);
    }
    if (w->draw) {
        float *draw = w->draw + start;
        for (int64_t i = 0; i < n; i++) draw[i] = fused(sigma[i], z[i], loc[i]);
        *kl += kl_of(loc, sigma, m, inv, n);
        return;
    }
    float c = w->kl_gradient;
    for (int64_t i = 0; i < n; i++) {
        float weight = c * inv[i], q = 1.0f / (1.0f + e[i]);
        float r = sigma[i] * inv[i];
        float of_sigma = fused(g[i], z[i], fused(r, weight, -(weight / r)));
        float of_loc = fused((loc[i] - m[i]) * inv[i], weight, g[i]);
        e[i] = of_sigma * (rho[i] > 0.0f ? q : e[i] * q);
        g[i] = of_loc;
    }
    int64_t tail = start + n == w->size ? n % 8 : 0;
    if (w->rules[0].mean) adam_step(&w->rules[0], loc, g, start, n, tail);
    else if (w->grad_loc) memcpy(w->grad_loc + start, g, 4 * (size_t)n);
    if (w->rules[1].mean) adam_step(&w->rules[1], rho, e, start, n, tail);
    else if (w->grad_rho) memcpy(w->grad_rho + start, e, 4 * (size_t)n);
}

/*
 * Outputs of a layer under local reparameterisation, mean + sqrt(variance) z, and their slope z / (2 sqrt(variance))
 * in the variance; where that is 0, or below it by rounding, both are taken as 0.
 */
static void do_outputs(const work *w, int64_t start, int64_t n, const float *z) {
    const float *mean = w->loc + start, *variance = w->rho + start;
    float *output = w->draw + start, *slope = w->grad_loc + start;
    for (int64_t i = 0; i < n; i++) {
        float v = variance[i], deviation = __builtin_sqrtf(v < 0.0f ? 0.0f : v);
        output[i] = fused(deviation, z[i], mean[i]);
        slope[i] = v <= 0.0f ? 0.0f : 0.5f * z[i] / deviation;
    }
}

static void do_chunk(const work *w, int64_t c) {
    int64_t start = c * w->chunk, end = end_of(w, c);
    place p = {w->sites, 0};
    float own[2 * BLOCK];
    twister g;
    double kl = 0;
    if (w->states) g = w->states[c];
    while (start < end) {
        int64_t n = end - start < 2 * BLOCK ? end - start : BLOCK; /* a last block has at least 16 numbers */
        float *z = w->noise ? w->noise + start : own;
        if (w->states) normal(&g, z, n, start + n == w->size);
        if (w->sites) do_block(w, &p, start, n, z, &kl);
        else do_outputs(w, start, n, z);
        start += n;
    }
    if (w->kl) w->kl[c] = kl;
}

static void do_chunks(void *data) {
    work *w = data;
    int64_t c;
    while ((c = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->last) do_chunk(w, c);
}

/* ------------------------------------------------------------------------------------------------ what is called */

/*
 * Write the state of the generator at the beginning of each chunk, and put `state`, as torch's get_state() has it, to
 * where torch.randn(size) would leave it: a count (4 bytes) at 8, the next word at 16, 624 words of 8 bytes from 24 on.
 */
void noise_states(twister *states, unsigned char *state, int64_t size, int64_t chunk) {
    work w = {.size = size, .chunk = chunk};
    twister g;
    uint64_t word;
    memcpy(&g.left, state + 8, 4);
    memcpy(&g.next, state + 16, 4);
    for (int i = 0; i < TWISTER; i++) {
        memcpy(&word, state + 24 + 8 * i, 8);
        g.word[i] = (uint32_t)word;
    }
    for (int64_t c = 0; c < chunks_of(&w); c++) {
        states[c] = g;
        uniform(&g, end_of(&w, c) - c * chunk, NULL);
    }
    if (size % 16) uniform(&g, 16, NULL);
    memcpy(state + 8, &g.left, 4);
    memcpy(state + 16, &g.next, 4);
    for (int i = 0; i < TWISTER; i++) {
        word = g.word[i];
        memcpy(state + 24 + 8 * i, &word, 8);
    }
}

/* Do all chunks; `parallel` is the GOMP_parallel of torch's own OpenMP, so that its threads do it, or NULL. */
void run(work *w, void (*parallel)(void (*)(void *), void *, unsigned, unsigned), unsigned threads) {
    w->next = w->first;
    if (parallel && threads > 1 && w->last - w->first > 1) parallel(do_chunks, w, threads, 0);
    else do_chunks(w);
}

/* Adam alone, for the test that compares it with torch's. */
void adam_alone(const adam *a, float *x, const float *g, int64_t n) { adam_step(a, x, g, 0, n, n % 8); }

int has_fma(void) {
#ifdef __FMA__
    return 1;
#else
    return 0;
#endif
}
