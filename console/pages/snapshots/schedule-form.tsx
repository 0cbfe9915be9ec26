import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../app/gateway.ts';
import { queryClient } from '../../app/query-client.ts';
import { type Project, projectQuery } from '../../app/resources.ts';
import { Button } from '../../components/button.tsx';
import { CommandLine } from '../../components/copy.tsx';
import { ErrorNote } from '../../components/feedback.tsx';
import { Field, SelectField } from '../../components/field.tsx';
import { announce } from '../../components/toast.tsx';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import { SNAPSHOTS_TEXT } from '../../strings/snapshots.ts';

type Every = NonNullable<Project['snapshot_schedule']>['every'];

const KEEP = { initial: 7, max: 30 };

/** When snapshots of main are taken. */
export function ScheduleForm({ project, mayEdit }: { project: Project; mayEdit: boolean }) {
  const schedule = project.snapshot_schedule;
  const [every, setEvery] = useState<Every | ''>(schedule?.every ?? '');
  const [keep, setKeep] = useState(String(schedule?.keep ?? KEEP.initial));
  const change = useMutation({
    mutationFn: () =>
      dataOf(
        api.PATCH('/api/v1/projects/{project_id}', {
          params: { path: { project_id: project.id } },
          body: { snapshot_schedule: every === '' ? null : { every, keep: Number(keep) } },
        }),
      ),
    onSuccess: (changed) => {
      announce(SNAPSHOTS_TEXT.scheduleSaved);
      queryClient.setQueryData(projectQuery(project.id).queryKey, changed);
    },
  });
  return (
    <form
      className="card padded stack"
      aria-labelledby="schedule"
      onSubmit={(event) => {
        event.preventDefault();
        if (!change.isPending) change.mutate();
      }}
    >
      <div>
        <h2 id="schedule">{SNAPSHOTS_TEXT.schedule}</h2>
        <p className="quiet">{SNAPSHOTS_TEXT.scheduleHint}</p>
      </div>
      <fieldset className="row form-row" disabled={!mayEdit}>
        <SelectField
          label={SNAPSHOTS_TEXT.every}
          value={every}
          onChange={({ target }) => setEvery(target.value as Every | '')}
        >
          {SNAPSHOTS_TEXT.everies.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </SelectField>
        {every !== '' && (
          <Field
            label={SNAPSHOTS_TEXT.keep}
            type="number"
            min={1}
            max={KEEP.max}
            value={keep}
            onChange={({ target }) => setKeep(target.value)}
            required
          />
        )}
        <Button type="submit" busy={change.isPending}>
          {TEXT.actions.save}
        </Button>
      </fieldset>
      {change.isError && <ErrorNote error={change.error} />}
      <CommandLine command={COMMANDS.scheduleSnapshots(project.id, every, keep)} />
    </form>
  );
}
