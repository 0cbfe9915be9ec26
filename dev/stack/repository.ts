import { resolve } from 'node:path';

/** The checkout that this file is in. */
export const ROOT = resolve(import.meta.dirname, '../..');
