import { resolve } from 'node:path';

/** The root of this checkout. */
export const ROOT = resolve(import.meta.dirname, '../..');
