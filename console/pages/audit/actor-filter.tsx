import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { ACTOR_TYPES, type ActorType } from '../../../shared/actor-types.ts';
import { apiKeysQuery, membersQuery } from '../../app/resources.ts';
import { Field, SelectField } from '../../components/field.tsx';
import { AUDIT_TEXT } from '../../strings/audit.ts';

/** A person, a trust (UUID), or a key. */
const ID = /^(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z2-7]{16})$/;

export interface ActorChoice {
  type: ActorType | undefined;
  id: string | undefined;
}

export const actorTypeOf = (text: string | undefined): ActorType | undefined =>
  ACTOR_TYPES.find((type) => type === text);

interface Props {
  chosen: ActorChoice;
  onChange: (change: { actor_type: string } | { actor: string }) => void;
}

/** Chooses actors by their type, and one by its e-mail address, the name of its key, or its ID. */
export function ActorFilter({ chosen, onChange }: Props) {
  const members = useQuery(membersQuery()).data ?? [];
  const keys = useQuery(apiKeysQuery()).data ?? [];
  const [typed, setTyped] = useState<string | null>(null);
  const known = [
    ...members.map(({ id, email }) => ({ id, label: email })),
    ...keys.map(({ id, name }) => ({ id, label: name })),
  ];
  const shown = typed ?? known.find(({ id }) => id === chosen.id)?.label ?? chosen.id ?? '';
  return (
    <>
      <SelectField
        label={AUDIT_TEXT.actorType}
        value={chosen.type ?? ''}
        onChange={({ target }) => onChange({ actor_type: target.value })}
      >
        <option value="">{AUDIT_TEXT.everyActor}</option>
        {ACTOR_TYPES.map((type) => (
          <option key={type} value={type}>
            {AUDIT_TEXT.actors[type]}
          </option>
        ))}
      </SelectField>
      <Field
        label={AUDIT_TEXT.actor}
        list="audit-actors"
        placeholder="ada@example.com"
        value={shown}
        onChange={({ target }) => {
          const text = target.value;
          setTyped(text);
          const id = known.find(({ label }) => label === text)?.id ?? (ID.test(text) ? text : undefined);
          if (text === '' || id !== undefined) onChange({ actor: id ?? '' });
        }}
      />
      <datalist id="audit-actors">
        {known.map(({ id, label }) => (
          <option key={id} value={label} />
        ))}
      </datalist>
    </>
  );
}
