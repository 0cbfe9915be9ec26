import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'sqlite',
  schema: [
    'schema',
    'people-schema',
    'company-schema',
    'session-schema',
    'oauth-schema',
    'masking-schema',
    'source-schema',
    'move-schema',
    'event-schema',
    'history-schema',
    'change-schema',
  ].map((name) => `./edge/database/${name}.ts`),
  out: './edge/database/migrations',
});
