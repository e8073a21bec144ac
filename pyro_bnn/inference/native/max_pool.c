/*
 * The maxima of windows of 2 x 2 pixels, next to each other, and where they are: torch's max_pool2d(x, 2) to the bit.
 *
 * Of equal pixels the first is taken, row by row; a pixel that is not a number is taken whatever came before. A last
 * odd row or column is left out. torch walks through every window by branches; these are selections, which a compiler
 * vectorises.
 */

#include <stdint.h>
#include <string.h>

#define LANES 16  /* windows at a time */
#define BLOCK 128 /* windows of which the maxima are kept before every other of them is left out */

typedef struct {
    const float *image;              /* (planes, height, width) */
    float *maximum;                  /* (planes, height / 2, width / 2) */
    int64_t *place;                  /* ... in its plane, counted row by row */
    int64_t planes, height, width;
    int64_t next; /* the plane that nobody has taken yet */
} pooling;

typedef struct {
    float above[BLOCK + LANES], below[BLOCK + LANES], best[BLOCK];
    int32_t at[BLOCK];
} rows;

#define TAKE(pixel, offset)                               \
    do {                                                  \
        int taken = (pixel) > most || (pixel) != (pixel); \
        most = taken ? (pixel) : most;                    \
        where = taken ? (offset) : where;                 \
    } while (0)

/* Two rows of pixels to one of maxima: of every window first, for that is done 16 at a time, and then every other. */
static void pool_rows(const float *restrict above, const float *restrict below, int64_t columns, int32_t width,
                      int64_t first, float *restrict maximum, int64_t *restrict place, rows *restrict kept) {
    float *a = kept->above, *b = kept->below, *best = kept->best;
    int32_t *at = kept->at;
    for (int64_t done = 0; done < columns; done += BLOCK / 2) {
        int64_t some = columns - done < BLOCK / 2 ? columns - done : BLOCK / 2;
        memcpy(a, above + 2 * done, 8 * (size_t)some);
        memcpy(b, below + 2 * done, 8 * (size_t)some);
        for (int64_t start = 0; start < 2 * some; start += LANES)
            for (int64_t i = start; i < start + LANES; i++) {
                float most = a[i];
                int32_t where = 0;
                TAKE(a[i + 1], 1);
                TAKE(b[i], width);
                TAKE(b[i + 1], width + 1);
                best[i] = most;
                at[i] = where;
            }
        for (int64_t j = 0; j < some; j++) {
            maximum[done + j] = best[2 * j];
            place[done + j] = first + 2 * (done + j) + at[2 * j];
        }
    }
}

static void pool_planes(void *data) {
    pooling *p = data;
    int64_t height = p->height / 2, columns = p->width / 2, plane;
    rows kept = {0};
    while ((plane = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->planes)
        for (int64_t i = 0; i < height; i++) {
            const float *above = p->image + (plane * p->height + 2 * i) * p->width;
            int64_t to = (plane * height + i) * columns;
            pool_rows(above, above + p->width, columns, (int32_t)p->width, 2 * i * p->width, p->maximum + to,
                      p->place + to, &kept);
        }
}

/* Do all planes; `parallel` as in mean_field.c. */
void max_pool(pooling *p, void (*parallel)(void (*)(void *), void *, unsigned, unsigned), unsigned threads) {
    p->next = 0;
    if (parallel && threads > 1 && p->planes > 1) parallel(pool_planes, p, threads, 0);
    else pool_planes(p);
}
