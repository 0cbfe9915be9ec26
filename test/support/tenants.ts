import { randomUUID } from 'node:crypto';
import { inject } from 'vitest';
import { Api } from './api.ts';

void randomUUID;
void inject;
void Api;
