/**
 * The part of Node's module that is used. Its own types would declare the globals of Node for the whole edge.
 */
declare module 'node:async_hooks' {
  export class AsyncLocalStorage<T> {
    run<R>(store: T, callback: () => R): R;
    getStore(): T | undefined;
  }
}
