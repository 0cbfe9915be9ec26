import { expect, test } from 'vitest';
import { startHost } from './host.ts';

test('the shared memory of a killed server is in its data folder', async () => {
  const servers = await startHost();
  try {
    expect(await servers.query('SHOW dynamic_shared_memory_type')).toEqual([
      { dynamic_shared_memory_type: 'mmap' },
    ]);
  } finally {
    await servers.stop();
  }
});
