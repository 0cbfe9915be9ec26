import { expect, test } from 'vitest';
import { ProjectGate } from '../../../agent/process/project-gate.ts';

test('a project has two calls under way and a host five; more fail immediately', () => {
  const gate = new ProjectGate({ ofProject: 2, ofHost: 5, noun: 'comparison' });
  const refused = (code: string) => expect.objectContaining({ code });
  const leave = gate.enter('a');
  gate.enter('a');
  expect(() => gate.enter('a')).toThrow(refused('PROJECT_BUSY'));
  for (const project of ['b', 'b', 'c']) gate.enter(project);
  expect(() => gate.enter('d')).toThrow(refused('HOST_BUSY'));
  leave();
  gate.enter('d');
  expect(() => gate.enter('a')).toThrow(refused('HOST_BUSY'));
});
