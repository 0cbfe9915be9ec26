/**
 * What of `node:crypto` the gateway uses; the types of all of Node.js would hide what workerd does not have.
 */
declare module 'node:crypto' {
  export function timingSafeEqual(one: Uint8Array, other: Uint8Array): boolean;
  export function scrypt(
    password: string,
    salt: Uint8Array,
    length: number,
    options: { N: number; r: number; p: number; maxmem: number },
    callback: (error: Error | null, derived: Uint8Array) => void,
  ): void;
}
