// embed: Gemma 3 inside a C++ program that has its own memory, its own threads, and a frame to draw every 16 milliseconds.
//
//     embed -m build/gemma-3-270m-nf4 "Why is the sky blue?"
//     embed -m DIR -n 40 --order late "Once upon a time"      the lent threads start late; the text stays the same
//
// Shows, in C++11 and one file: handles that close themselves; any lambda behind any hook; memory from an allocator that counts;
// the work of each step as jobs on threads of one's own; and a loop that writes the answer between its frames with g3_add_turn
// and g3_next, on one thread, never held up for longer than one step. --order shows what a job system may do with the bodies it
// is lent: start them late, in reversed order, or one after another on the calling thread (serial).
// The answer goes to stdout, everything else to stderr.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// ---- handles that close themselves. A session keeps its model alive, so the order of closing does not matter

struct closer {
    void operator()(g3_model *m) const { g3_model_close(m); }
    void operator()(g3_session *s) const { g3_session_close(s); }
};
typedef std::unique_ptr<g3_model, closer> model;
typedef std::unique_ptr<g3_session, closer> session;

// ---- any callable behind any hook: the types are those of the hook's own field, the callable goes through `user`.
// It must outlive whatever holds the hook, and must not throw.

template <class F, class R, class... A> void hook(R (*&fn)(void *, A...), void *&user, F &callable)
{
    fn = [](void *u, A... a) -> R { return (*static_cast<F *>(u))(a...); };
    user = &callable;
}

// ---- memory: malloc, counted. What the header asks for is aligned to at most 64 bytes; the block's own pointer lies before it

class counter {
public:
    std::atomic<long> calls;
    std::atomic<size_t> live, peak;

    counter() : calls(0), live(0), peak(0) {}
    g3_allocator hooks() { g3_allocator a = { alloc, release, this }; return a; }

private:
    static void *alloc(void *user, size_t size, size_t align)
    {
        counter *c = static_cast<counter *>(user);
        size_t before = align + sizeof(void *);
        char *block = size <= SIZE_MAX - before ? static_cast<char *>(std::malloc(size + before)) : nullptr;
        if (!block) return nullptr;
        uintptr_t at = (reinterpret_cast<uintptr_t>(block) + before) & ~static_cast<uintptr_t>(align - 1);
        reinterpret_cast<void **>(at)[-1] = block;
        c->calls++;
        size_t now = c->live += size, top = c->peak;
        while (now > top && !c->peak.compare_exchange_weak(top, now)) {}
        return reinterpret_cast<void *>(at);
    }

    static void release(void *user, void *p, size_t size)
    {
        if (!p) return;
        static_cast<counter *>(user)->live -= size;
        std::free(static_cast<void **>(p)[-1]);
    }
};

// ---- threads: a job system of the smallest kind. run() returns when all bodies are done; the caller helps

class jobs {
public:
    enum order { direct, late, reversed, serial };

    jobs(int threads, order how) : how_(how), body_(nullptr), ctx_(nullptr), n_(0), next_(0), left_(0), quit_(false)
    {
        for (int i = 1; i < threads; i++) threads_.emplace_back([this] { help(); });
    }

    ~jobs()
    {
        { std::lock_guard<std::mutex> hold(lock_); quit_ = true; }
        wake_.notify_all();
        for (std::thread &t : threads_) t.join();
    }

    jobs(const jobs &) = delete;
    jobs &operator=(const jobs &) = delete;

    int width() const { return static_cast<int>(threads_.size()) + 1; }

    void run(int n, void (*body)(void *, int), void *ctx)
    {
        if (how_ == serial) { for (int i = 0; i < n; i++) body(ctx, i); return; }
        std::unique_lock<std::mutex> hold(lock_);
        body_ = body;
        ctx_ = ctx;
        n_ = left_ = n;
        next_ = 0;
        wake_.notify_all();
        take(hold);
        done_.wait(hold, [this] { return left_ == 0; });
    }

private:
    void take(std::unique_lock<std::mutex> &hold)        // bodies, as long as there are any; the lock is held between them
    {
        while (next_ < n_) {
            int i = how_ == reversed ? n_ - 1 - next_ : next_;
            next_++;
            hold.unlock();
            if (how_ == late) std::this_thread::sleep_for(std::chrono::microseconds(50 * (i % 3)));
            body_(ctx_, i);
            hold.lock();
            if (--left_ == 0) done_.notify_one();
        }
    }

    void help()
    {
        std::unique_lock<std::mutex> hold(lock_);
        while (!quit_) {
            take(hold);
            if (!quit_) wake_.wait(hold);
        }
    }

    order how_;
    std::vector<std::thread> threads_;
    std::mutex lock_;
    std::condition_variable wake_, done_;
    void (*body_)(void *, int);
    void *ctx_;
    int n_, next_, left_;
    bool quit_;
};

// ---- frames: stands for a game or an editor that wants to draw every 16 ms. Its picture is the text that has arrived

class screen {
public:
    int frames;
    double longest_gap;                // seconds between two frames, once the first was drawn

    screen() : frames(0), longest_gap(0) {}

    static double now()
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    double left() const { return last_ + 0.016 - now(); }
    void add(const char *text, int size) { arrived_.append(text, static_cast<size_t>(size)); }

    void draw()
    {
        double t = now();
        if (frames++) longest_gap = std::max(longest_gap, t - last_);
        last_ = t;
        std::fwrite(arrived_.data(), 1, arrived_.size(), stdout);
        std::fflush(stdout);
        arrived_.clear();
    }

    void draw_if_due() { if (left() <= 0) draw(); }

    void wait() const                                    // for the next frame, as vertical sync would
    {
        if (left() > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left()));
    }

private:
    double last_ = now();
    std::string arrived_;
};

// The prompt: a turn of a conversation. A model that was not made to chat gets the bare words and goes on writing.
static g3_result read_prompt(g3_model *m, g3_session *s, const g3_turn &turn, g3_error *err)
{
    if (g3_model_get_info(m).chat) return g3_add_turn(s, &turn, err);
    int n = g3_tokenize(m, turn.text, SIZE_MAX, G3_TOKENIZE_BOS, nullptr, 0);
    std::vector<int> ids(static_cast<size_t>(std::max(n, 1)));
    g3_tokenize(m, turn.text, SIZE_MAX, G3_TOKENIZE_BOS, ids.data(), n);
    return g3_add_tokens(s, ids.data(), std::max(n, 0), err);
}

// One answer, written between frames: each frame makes as many tokens as fit into what is left of its 16 ms, and at least one.
static int answer(g3_session *s, const g3_generate_desc &g, screen *show, double *longest_step, g3_error *err)
{
    int made = 0, more = 1;
    while (more == 1) {
        double step = 0;
        show->draw();
        do {
            g3_token t;
            double start = screen::now();
            more = g3_next(s, &g, &t, err);
            if (more >= 0) show->add(t.text, t.size);
            made += more == 1;
            step = std::max(step, screen::now() - start);
        } while (more == 1 && show->left() > step);
        *longest_step = std::max(*longest_step, step);
        show->wait();
    }
    show->draw();
    return more < 0 ? more : made;
}

struct arguments { const char *path, *prompt; int tokens; jobs::order order; };

static bool parse(int argc, char **argv, arguments *a)
{
    static const char *const orders[] = { "direct", "late", "reversed", "serial" };
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!std::strcmp(argv[i], "-m")) { a->path = value; i++; }
        else if (!std::strcmp(argv[i], "-n")) { a->tokens = std::atoi(value); i++; if (a->tokens < 1) return false; }
        else if (!std::strcmp(argv[i], "--order")) {
            int k = 0;
            while (k < 4 && std::strcmp(orders[k], value)) k++;
            if (k == 4) return false;
            a->order = static_cast<jobs::order>(k);
            i++;
        }
        else if (argv[i][0] == '-' || a->prompt) return false;
        else a->prompt = argv[i];
    }
    return a->prompt && *a->path;
}

static int run(const arguments &a)
{
    int cores = static_cast<int>(std::thread::hardware_concurrency());
    counter memory;                                      // these outlive the model: it was lent them
    jobs pool(std::max(2, std::min(cores, 16)), a.order);
    screen show;
    g3_error err;

    auto lend = [&](int n, void (*body)(void *, int), void *ctx) { pool.run(n, body, ctx); };
    auto log = [](g3_level level, const char *line) { if (level <= G3_LOG_WARN) std::fprintf(stderr, "embed: %s\n", line); };
    auto progress = [&](const char *, uint64_t, uint64_t) { show.draw_if_due(); return 0; };    // between two steps of a prompt, two pieces of a file

    g3_session_desc sd = g3_session_desc();
    sd.batch = 16;                                       // short steps, so that a long prompt lets the frames through, too
    hook(sd.progress.progress_fn, sd.progress.user, progress);

    g3_model_desc md = g3_model_desc();
    md.path = a.path;
    md.session = &sd;
    md.allocator = memory.hooks();
    md.parallel.width = pool.width();
    hook(md.parallel.for_fn, md.parallel.user, lend);
    hook(md.logger.log_fn, md.logger.user, log);
    hook(md.progress.progress_fn, md.progress.user, progress);

    model m(g3_model_open(&md, &err));
    session s(m ? g3_session_open(m.get(), nullptr, &err) : nullptr);
    if (!s) { std::fprintf(stderr, "embed: %s\n", err.text); return 1; }
    long calls = memory.calls;
    int loading = show.frames;

    g3_turn turn = g3_turn();
    turn.text = a.prompt;
    turn.generate.sampler.greedy = true;
    turn.generate.max_tokens = a.tokens;
    double start = screen::now(), longest_step = 0;
    int made = read_prompt(m.get(), s.get(), turn, &err) == G3_OK ? answer(s.get(), turn.generate, &show, &longest_step, &err) : err.code;
    double took = screen::now() - start;
    std::printf("\n");
    if (made < 0) { std::fprintf(stderr, "embed: %s\n", err.text); return 1; }

    std::fprintf(stderr, "%d tokens and %d frames in %.2f s (%d more while loading); the longest step of the answer took %.1f ms, the longest wait for a frame %.1f ms\n",
                 made, show.frames - loading, took, loading, 1e3 * longest_step, 1e3 * show.longest_gap);
    std::fprintf(stderr, "memory: %zu bytes at most, in %ld allocations, %ld of them after opening\n", memory.peak.load(), memory.calls.load(), memory.calls.load() - calls);
    s.reset();
    m.reset();
    std::fprintf(stderr, "%zu bytes are left after closing\n", memory.live.load());
    return memory.live ? 1 : 0;
}

int main(int argc, char **argv)
{
    arguments a = { "build/gemma-3-270m-nf4", nullptr, 100, jobs::direct };
    if (parse(argc, argv, &a)) return run(a);
    std::fprintf(stderr, "usage: embed [-m DIR] [-n TOKENS] [--order late|reversed|serial] PROMPT\n");
    return 2;
}
