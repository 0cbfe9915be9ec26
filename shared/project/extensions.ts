import { z } from 'zod';

export const PROJECT_EXTENSIONS_MAX = 10;

/** Names of extensions that a project is created with, which its owners can neither drop nor update. */
export const ProjectExtensions = z
  .array(z.string().regex(/^[a-z][a-z0-9_-]{0,62}$/, 'is no name of an extension'))
  .max(PROJECT_EXTENSIONS_MAX)
  .refine((names) => new Set(names).size === names.length, 'Name each extension once.');
