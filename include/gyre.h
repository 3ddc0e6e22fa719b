/* Gyre's C API: a model in this process, and texts that it continues.
 *
 *   int error = 0;
 *   gyre_model* model = gyre_load("model.gguf", NULL, &error);
 *   gyre_session* session = gyre_start(model, "Once upon a time", 64, 0.0f, 0, 0.0f, 1, &error);
 *   char text[256];
 *   int index = 0;
 *   while (gyre_next_token(session, text, sizeof text, &index, &error)) fputs(text, stdout);
 *   gyre_free(session);
 *   gyre_model_free(model);
 *
 * Link with `pkg-config --cflags --libs gyre`. Texts are UTF-8 and end with a zero byte. No function throws, and none
 * ends the process.
 *
 * Threads: a model may be used by many threads at once, and its sessions run side by side, each at nearly the speed of
 * one. A session belongs to one thread at a time; gyre_cancel may be called by any. */
#ifndef GYRE_H
#define GYRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GYRE_API __attribute__((visibility("default")))
#else
#define GYRE_API
#endif

/* The numbers are stable. */
typedef enum gyre_error {
  GYRE_OK = 0,
  GYRE_INVALID_ARGUMENT = 1, /* a null pointer, a value out of range, a prompt longer than the context */
  GYRE_OUT_OF_MEMORY = 2,    /* memory for weights or the KV cache */
  GYRE_NOT_FOUND = 3,        /* no such file */
  GYRE_BAD_MODEL = 4,        /* the file is damaged, or of a kind that Gyre can't read */
  GYRE_INFERENCE_FAILED = 5, /* a step could not be computed */
  GYRE_BUFFER_TOO_SMALL = 6, /* the next character does not fit; nothing is lost, call again with more room */
  GYRE_BUSY = 7,             /* too many sessions wait */
  GYRE_CANCELLED = 8,        /* gyre_cancel was called */
  GYRE_UNKNOWN = 99
} gyre_error;

typedef struct gyre_model gyre_model;
typedef struct gyre_session gyre_session;

/* Zero in a field means the default. */
typedef struct gyre_options {
  size_t struct_size;    /* sizeof(gyre_options), so that later versions can add fields */
  int threads;           /* default: one for each core */
  uint32_t context;      /* tokens of a session at most; default: what the file says */
  uint32_t parallel;     /* sessions of the whole context that fit into the KV cache; default: 1 */
  const char* kv_type;   /* "f32", "f16", "bf16", "q8_0", "q4_0", "q4_0_plain"; default: "f16" */
  const char* tokenizer; /* path of tokenizer.bin, for models that have none in their file */
  const char*
      device; /* "cpu", "cuda:0", "auto"; default: "auto", the first GPU that can be used, else the processors */
  uint64_t device_memory; /* bytes that are reserved on a GPU; default: nine tenths of what it has free */
} gyre_options;

/* "0.1.0" */
GYRE_API const char* gyre_version(void);
/* "out of memory"; never null. */
GYRE_API const char* gyre_error_name(int error);
/* A sentence about the last error of the calling thread; "" if there was none. Valid until its next call. */
GYRE_API const char* gyre_error_message(void);

/* Opens a model file and loads all of it. Null: see *error. `options` may be null, `error` too. */
GYRE_API gyre_model* gyre_load(const char* path, const gyre_options* options, int* error);
/* Its sessions may live on: memory is given back with the last of them. Null is allowed. */
GYRE_API void gyre_model_free(gyre_model* model);

/* Starts to continue `prompt`. Null: see *error.
 *   max_tokens   1 or more; 0 or less: until the context is full
 *   temperature  0 to 2; 0 takes the most likely token, and the same prompt gives the same text always
 *   top_k        0 or less: 50
 *   top_p        up to 1; 0 or less: 0.95
 *   seed         the same seed, prompt and settings give the same text */
GYRE_API gyre_session* gyre_start(gyre_model* model, const char* prompt, int max_tokens, float temperature, int top_k,
                                  float top_p, uint64_t seed, int* error);
/* The same for a conversation: `messages` is JSON, [{"role": "user", "content": "Hello"}, ...]. The model's own chat
 * template makes it a prompt. */
GYRE_API gyre_session* gyre_start_chat(gyre_model* model, const char* messages, int max_tokens, float temperature,
                                       int top_k, float top_p, uint64_t seed, int* error);

/* What a text obeys: one of the first three, the others null. Zero in a field means the default. */
typedef struct gyre_grammar {
  size_t struct_size;      /* sizeof(gyre_grammar) */
  const char* json_schema; /* the text is JSON that obeys this schema */
  const char* regex;       /* the whole text matches this regular expression (ECMA-262) */
  const char* gbnf;        /* a grammar in llama.cpp's form */
  bool compact_json;       /* JSON has no white space */
  bool no_jump_ahead;      /* the model is asked for tokens, too, about which the grammar leaves no choice */
} gyre_grammar;

/* gyre_start and gyre_start_chat with a text that obeys `grammar`. GYRE_INVALID_ARGUMENT: it is malformed, can't be
 * obeyed wholly or passes a bound, as gyre_error_message says. A text that max_tokens ends is cut. */
GYRE_API gyre_session* gyre_start_grammar(gyre_model* model, const char* prompt, const gyre_grammar* grammar,
                                          int max_tokens, float temperature, int top_k, float top_p, uint64_t seed,
                                          int* error);
GYRE_API gyre_session* gyre_start_chat_grammar(gyre_model* model, const char* messages, const gyre_grammar* grammar,
                                               int max_tokens, float temperature, int top_k, float top_p, uint64_t seed,
                                               int* error);

/* A setting of sampling: its name, such as "min_p" (see gyre_setting_name and docs/api.md), and its value. */
typedef struct gyre_setting {
  const char* name;
  double value;
} gyre_setting;

/* What gyre_start_request continues, and how. Zero in a field means the default. */
typedef struct gyre_request {
  size_t struct_size;           /* sizeof(gyre_request) */
  const char* prompt;           /* this text, or */
  const char* messages;         /* this conversation, as gyre_start_chat has it; the other one is null */
  const gyre_grammar* grammar;  /* what the text obeys; default: nothing */
  const gyre_setting* settings; /* what is not named here is as the model's file recommends, or as `gyre run` has it */
  size_t num_settings;          /* the length of `settings` */
  int max_tokens;               /* default: until the context is full */
  uint64_t seed;                /* the same seed, prompt and settings give the same text */
} gyre_request;

/* The functions above with every setting that Gyre has. Null: see *error. GYRE_INVALID_ARGUMENT: a setting is unknown
 * or out of its range, as gyre_error_message says. */
GYRE_API gyre_session* gyre_start_request(gyre_model* model, const gyre_request* request, int* error);
/* The name of setting number `i`, counted from 0; null: there are not so many. */
GYRE_API const char* gyre_setting_name(size_t i);

/* Waits for the next token. True: its text is in `text`, with a zero byte at the end, and its number, counted from 0,
 * in *index. At most `size` bytes are written. The text holds whole characters only: it may be empty where a token is
 * a part of a character, and a text that does not fit comes in several calls with the same index.
 * False: the text has ended (*error is GYRE_OK), or see *error. `index` and `error` may be null. */
GYRE_API bool gyre_next_token(gyre_session* session, char* text, int size, int* index, int* error);
/* A gyre_next_token that waits, and every later one, returns false with GYRE_CANCELLED. Any thread. */
GYRE_API void gyre_cancel(gyre_session* session);
/* Ends the session and gives everything back. Null is allowed. */
GYRE_API void gyre_free(gyre_session* session);

#ifdef __cplusplus
}
#endif

#endif
