from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0003_finished_request'),
    ]

    operations = [
        migrations.AddField(
            model_name='storedanswer',
            name='created_by',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
    ]
