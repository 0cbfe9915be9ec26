import gateway from '../../../edge/worker.ts';

export {
  Challenges,
  HostLink,
  ProjectCoordinator,
  RateLimiter,
  WebhookSender,
} from '../../../edge/worker.ts';

/** The gateway, which tells a test what is in the objects that all requests of its isolate share. */

const SHARED = [
  ...[
    Object,
    Function,
    Array,
    String,
    Number,
    Boolean,
    Symbol,
    Promise,
    Map,
    Set,
    WeakMap,
    Date,
    RegExp,
    Error,
  ],
  ...[
    TypeError,
    URL,
    URLSearchParams,
    Headers,
    Request,
    Response,
    JSON,
    Uint8Array,
    ArrayBuffer,
    Intl.Collator,
  ],
];

const objects = () =>
  SHARED.flatMap((each): object[] =>
    'prototype' in each ? [each, each.prototype as object] : [each],
  ).concat(
    Object.getPrototypeOf([][Symbol.iterator]()),
    Object.getPrototypeOf(async () => {}),
    Object.getPrototypeOf(Uint8Array),
  );

export default {
  fetch: (request, env, context) => {
    if (new URL(request.url).pathname !== '/test/shared') return gateway.fetch(request, env, context);
    const names = objects().map((each) => Reflect.ownKeys(each).map(String));
    return Response.json({
      names,
      open: objects()
        .filter((each) => !Object.isFrozen(each))
        .map(String),
    });
  },
} satisfies ExportedHandler<never>;
