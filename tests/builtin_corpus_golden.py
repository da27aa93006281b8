"""Golden sentences of the built-in corpus: the French was read and checked by hand.

A block for each pattern of the grammar: its name, then three times an English line and its French.
They are what the pattern draws from `Random("golden <name>")`.
"""

_BLOCKS = """\
coreference
These horses didn't cross the canal because it was too long.
Ces chevaux n'ont pas traversé le canal parce qu'il était trop long.
The goats don't push my tables because they are too heavy.
Les chèvres ne poussent pas mes tables parce qu'elles sont trop lourdes.
The hen didn't enter this office because it was too weak.
La poule n'est pas entrée dans ce bureau parce qu'elle était trop faible.

person_or_thing
The woman doesn't climb the fence because she is very beautiful.
La femme n'escalade pas la clôture parce qu'elle est très belle.
The woman doesn't push this cupboard because she is too happy.
La femme ne pousse pas cette armoire parce qu'elle est trop heureuse.
Their brother doesn't lift the chair because it is broken.
Leur frère ne soulève pas la chaise parce qu'elle est cassée.

contrast
The story was very famous, but it was boring.
L'histoire était très célèbre, mais elle était ennuyeuse.
The bridges are very wide, but they are very noisy.
Les ponts sont très larges, mais ils sont très bruyants.
This bird was very sad, but it wasn't very dangerous.
Cet oiseau était très triste, mais il n'était pas très dangereux.

cause
We hate my bitter orange because it is very good.
Nous détestons mon orange amère parce qu'elle est très bonne.
His father didn't choose these giraffes because they were too happy.
Son père n'a pas choisi ces girafes parce qu'elles étaient trop heureuses.
They love the story because it is very boring.
Ils adorent l'histoire parce qu'elle est très ennuyeuse.

transfer
They chose two easy poems, but Julie didn't hide them.
Ils ont choisi deux poèmes faciles, mais Julie ne les a pas cachés.
You chose the new comfortable coat, but she sold it.
Vous avez choisi le nouveau manteau confortable, mais elle l'a vendu.
They found a solid bottle, but Anna saw it.
Ils ont trouvé une bouteille solide, mais Anna l'a vue.

opinion
The funny kings know that the dangerous lakes were too cold.
Les rois drôles savent que les lacs dangereux étaient trop froids.
The girl thinks that this computer wasn't very small.
La fille pense que cet ordinateur n'était pas très petit.
They know that the tomato isn't too fresh.
Ils savent que la tomate n'est pas trop fraîche.

relative
His neighbors who wrote the book are very beautiful.
Ses voisins qui ont écrit le livre sont très beaux.
The queen who closed the factory is shy.
La reine qui a fermé l'usine est timide.
The boy who eats three cold sandwiches is very intelligent.
Le garçon qui mange trois sandwichs froids est très intelligent.

place_of_thing
Where is their key? It is near her chair.
Où est leur clé ? Elle est près de sa chaise.
Where are your cups? They are in the suitcase.
Où sont vos tasses ? Elles sont dans la valise.
Where is his empty box? It is under the table.
Où est sa boîte vide ? Elle est sous la table.

yes_no
Can we wash the buses?
Est-ce que nous pouvons laver les bus ?
Can the calm teachers sing in front of her small van?
Est-ce que les professeurs calmes peuvent chanter devant sa petite camionnette ?
Can she visit a quiet park?
Est-ce qu'elle peut visiter un parc tranquille ?

yes_no_description
Was their newspaper bad?
Est-ce que leur journal était mauvais ?
Are we poor?
Est-ce que nous sommes pauvres ?
Is the old wall too solid?
Est-ce que le vieux mur est trop solide ?

reason_place_or_time
When do you choose this bitter apple?
Quand choisissez-vous cette pomme amère ?
Where does Victor run today?
Où Victor court-il aujourd'hui ?
Why didn't the king enter the bedroom?
Pourquoi le roi n'est-il pas entré dans la chambre ?

what
What did she write in your garages?
Qu'a-t-elle écrit dans vos garages ?
What does he drink behind the tower?
Que boit-il derrière la tour ?
What did she visit behind the green van?
Qu'a-t-elle visité derrière la camionnette verte ?

who
Who has the computer?
Qui a l'ordinateur ?
Who eats our hard rice?
Qui mange notre riz dur ?
Who buys some cupboards?
Qui achète des armoires ?

where_is
Where is the expensive bike?
Où est le vélo cher ?
Where are these expensive dresses?
Où sont ces robes chères ?
Where is the black drawer?
Où est le tiroir noir ?

how_many
How many baskets does she have?
Combien de paniers a-t-elle ?
How many shirts do they buy?
Combien de chemises achètent-ils ?
How many motorcycles does his mother buy?
Combien de motos sa mère achète-t-elle ?

order
Help the sad elephant!
Aidez l'éléphant triste !
Don't wash the animals!
Ne lavez pas les animaux !
Find the dangerous bikes!
Trouvez les vélos dangereux !

transitive
Their lazy brother doesn't drink the sweet coffee.
Leur frère paresseux ne boit pas le café sucré.
They wait for a comfortable bike.
Ils attendent un vélo confortable.
The animal doesn't push my small bed.
L'animal ne pousse pas mon petit lit.

taste
Our young father doesn't like cheese.
Notre jeune père n'aime pas le fromage.
I don't hate cats.
Je ne déteste pas les chats.
The doctors don't hate eggs.
Les médecins ne détestent pas les œufs.

intransitive
Your mouse sleeps near the cupboard.
Votre souris dort près de l'armoire.
These mice sleep in the pretty quiet forest.
Ces souris dorment dans la jolie forêt tranquille.
Their poor friend doesn't sing near these low towers.
Leur ami pauvre ne chante pas près de ces tours basses.

motion
She must go to the beach.
Elle doit aller à la plage.
The bird arrives at these markets.
L'oiseau arrive à ces marchés.
The dangerous owls stayed in the modern schools yesterday.
Les hiboux dangereux sont restés dans les écoles modernes hier.

description
The green van was old.
La camionnette verte était vieille.
The happy owls are too weak.
Les hiboux heureux sont trop faibles.
The long dangerous river isn't too wide.
La longue rivière dangereuse n'est pas trop large.

location
The box is in your noisy kitchen.
La boîte est dans votre cuisine bruyante.
Your orange is under these new armchairs.
Votre orange est sous ces nouveaux fauteuils.
The story is under your yellow tables.
L'histoire est sous vos tables jaunes.

existence
There is a shirt in the drawer.
Il y a une chemise dans le tiroir.
There isn't a cake on the tables.
Il n'y a pas de gâteau sur les tables.
There is an empty bag in the kitchen.
Il y a un sac vide dans la cuisine.

profession
My friends were singers.
Mes amis étaient chanteurs.
They don't want to be artists.
Ils ne veulent pas être artistes.
She isn't an artist.
Elle n'est pas artiste.

object_pronoun
The grey giraffe is going to follow her next week.
La girafe grise va la suivre la semaine prochaine.
His black rabbit follows them today.
Son lapin noir les suit aujourd'hui.
My bird looks for them.
Mon oiseau les cherche.

possessor
They look for Anna's church.
Ils cherchent l'église d'Anna.
They look for the girl's hats.
Ils cherchent les chapeaux de la fille.
You chose Victor's castle.
Vous avez choisi le château de Victor.

comparison
The story is as long as this book.
L'histoire est aussi longue que ce livre.
The factory is as quiet as the houses.
L'usine est aussi tranquille que les maisons.
This baker wasn't as sad as their teacher.
Ce boulanger n'était pas aussi triste que leur professeur.

coordination
Your friend and this baker are too weak.
Votre ami et ce boulanger sont trop faibles.
This knife and the mirrors were too dirty.
Ce couteau et les miroirs étaient trop sales.
Their trucks and the car were small.
Leurs camions et la voiture étaient petits.
"""


def golden_sentences() -> dict[str, list[tuple[str, str]]]:
    """The golden (English, French) pairs by name of their pattern."""
    golden = {}
    for block in _BLOCKS.strip().split("\n\n"):
        name, *lines = block.split("\n")
        golden[name] = list(zip(lines[::2], lines[1::2], strict=True))
    return golden
