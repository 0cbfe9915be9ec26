/**
 * Freezes the objects that all code of a process shares. A value that a tenant's input puts into
 * `Array.prototype`, or a method that it replaces, would take part in the requests of all other tenants. No
 * code may write by the paths of a client; this bounds what such code can do where it was overlooked.
 */

type Shared = object;
const isShared = (value: unknown): value is Shared =>
  (typeof value === 'object' && value !== null) || typeof value === 'function';

/**
 * The bindings of the language (ECMA-262 section 19) and of ECMA-402. `Reflect` is left out: no path of an object
 * leads to it, and a library of the agent that is loaded late adds methods to it.
 */
const NAMES = [
  ...['Object', 'Function', 'Array', 'String', 'Number', 'Boolean', 'Symbol', 'BigInt', 'Date', 'RegExp'],
  ...['Promise', 'Map', 'Set', 'WeakMap', 'WeakSet', 'WeakRef', 'FinalizationRegistry', 'Iterator', 'Proxy'],
  ...['JSON', 'Math', 'Atomics', 'Intl', 'ArrayBuffer', 'SharedArrayBuffer', 'DataView'],
  ...[
    'Int8Array',
    'Uint8Array',
    'Uint8ClampedArray',
    'Int16Array',
    'Uint16Array',
    'Int32Array',
    'Uint32Array',
  ],
  ...['Float16Array', 'Float32Array', 'Float64Array', 'BigInt64Array', 'BigUint64Array'],
  ...['Error', 'AggregateError', 'EvalError', 'RangeError', 'ReferenceError', 'SyntaxError', 'TypeError'],
  ...['URIError', 'SuppressedError'],
];

/** What requests of the Web platform are made of. Node.js would load its modules for them. */
export const WEB_NAMES: readonly string[] = [
  ...[
    'URL',
    'URLSearchParams',
    'Headers',
    'Request',
    'Response',
    'FormData',
    'Blob',
    'TextEncoder',
    'TextDecoder',
  ],
  ...['ReadableStream', 'WritableStream', 'TransformStream', 'AbortController', 'AbortSignal', 'Event'],
  ...['EventTarget', 'DOMException', 'CryptoKey', 'SubtleCrypto', 'Crypto'],
];

/** Iterators and kinds of functions, which have no name of their own. */
const UNNAMED: readonly unknown[] = [
  async () => {},
  function* () {},
  async function* () {},
  [][Symbol.iterator](),
  new Map()[Symbol.iterator](),
  new Set()[Symbol.iterator](),
  ''[Symbol.iterator](),
  ''.matchAll(/x/g),
].map((value) => Object.getPrototypeOf(value));

/**
 * The properties of these prototypes that objects set for themselves, as `error.name = …` and
 * `Shape.prototype.toString = …` do. An assignment to an object whose prototype has a read-only property of
 * the name would throw, so these are accessors that give the object a property of its own.
 */
const OVERRIDABLE: readonly Shared[] = [
  Object.prototype,
  Error.prototype,
  ...[AggregateError, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError].map(
    ({ prototype }) => prototype,
  ),
];

function letOverride(prototype: Shared): void {
  for (const key of Reflect.ownKeys(prototype)) {
    const { value, configurable } = Object.getOwnPropertyDescriptor(prototype, key) ?? {};
    if (value === undefined || !configurable) continue;
    Object.defineProperty(prototype, key, {
      get: () => value,
      set(this: Shared, own: unknown) {
        if (this === prototype) throw new TypeError(`${String(key)} of a shared prototype is read-only`);
        const descriptor = Object.getOwnPropertyDescriptor(this, key);
        if (descriptor) Object.defineProperty(this, key, { ...descriptor, value: own });
        else
          Object.defineProperty(this, key, {
            value: own,
            writable: true,
            enumerable: true,
            configurable: true,
          });
      },
      enumerable: false,
      configurable: true,
    });
  }
}

/** The intrinsics, and everything that their properties and prototypes lead to. */
function intrinsics(more: readonly string[]): Set<Shared> {
  const named = [...NAMES, ...more].map((name): unknown => Reflect.get(globalThis, name));
  const found = new Set<Shared>([...named, ...UNNAMED].filter(isShared));
  // A set visits what is added while it is read.
  for (const each of found) {
    const leads: unknown[] = [Object.getPrototypeOf(each)];
    for (const key of Reflect.ownKeys(each)) {
      const { value, get, set } = Object.getOwnPropertyDescriptor(each, key) ?? {};
      leads.push(value, get, set);
    }
    for (const next of leads) if (isShared(next) && next !== globalThis) found.add(next);
  }
  return found;
}

/**
 * Freezes the intrinsics. To be called when all modules that are imported at the start are evaluated, because
 * some add methods to them.
 * @param more names of other globals
 */
export function freezeIntrinsics(more: readonly string[] = []): void {
  if (Object.isFrozen(Object.prototype)) return;
  for (const prototype of OVERRIDABLE) letOverride(prototype);
  for (const each of intrinsics(more)) Object.freeze(each);
}
