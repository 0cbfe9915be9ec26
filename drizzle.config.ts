import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'sqlite',
  schema: [
    'schema',
    'snapshot-schema',
    'difference-schema',
    'account-schema',
    'people-schema',
    'machine-schema',
    'event-schema',
    'idempotency-schema',
  ].map((name) => `./edge/database/${name}.ts`),
  out: './edge/database/migrations',
});
